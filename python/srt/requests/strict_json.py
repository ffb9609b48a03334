"""Strict JSON: bounded in depth, without constructs that JSON parsers read differently."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from sglang.srt.core.depth import deeper
from sglang.srt.requests.request_error import RequestError

MAX_DEPTH = 128
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(data: bytes, what: str = "The body") -> Any:
    """Parse strict JSON in UTF-8. Raises RequestError with a message that begins with ``what``.

    Besides invalid syntax, these are refused: duplicate keys, NaN and Infinity, nesting deeper than
    ``MAX_DEPTH``, and escapes of lone surrogates.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not valid UTF-8 (byte {error.start}).") from error
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{what} holds a lone surrogate escape.") from error
    except RecursionError as error:
        raise _too_deep(what) from error
    except ValueError as error:
        raise RequestError(f"{what} is not valid JSON: {error}") from error
    if text.count("[") + text.count("{") > MAX_DEPTH and deeper(value, MAX_DEPTH):
        raise _too_deep(what)
    return value


def _too_deep(what: str) -> RequestError:
    return RequestError(f"{what} is nested deeper than {MAX_DEPTH} levels.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} appears twice in one object")
    return found


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is out of range")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
