"""Explain: the requests that a program would send, call by call, without sending them.

The program runs sequentially, but its calls get placeholder answers: a generated value is
``⟨name⟩``, a select takes its first option, unless answers are given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang.backend.base import Backend
from sglang.backend.mock import common
from sglang.compile.tracer import _tracing
from sglang.errors import SglangError
from sglang.forecast.rehearsal import Answers, Endless, RehearsedRequest, Script, Stage
from sglang.ir.params import GenParams
from sglang.state import Program
from sglang.views.display import described

MAX_DATA_CHARS = 100  # printed characters of a medium's data URL
SHARED_CHARS = 80  # least characters of a common beginning that is not printed again


@dataclass(frozen=True)
class Explanation:
    """Requests that a program would send, in order (``requests``). The printed form does not repeat
    a long beginning that an earlier request has too."""

    requests: tuple[RehearsedRequest, ...]

    def __str__(self) -> str:
        lines: list[str] = []
        texts: list[str] = []
        for number, request in enumerate(self.requests, 1):
            lines.append(f"{number}. {request.title}, {request.location}")
            for name, value in request.body.items():
                said, rest = _shared(texts, value) if name == "text" else ("", value)
                lines += [f"   {name}: {said}"] if said else []
                lines += _lines("then" if said else name, rest, "   ")
            texts.append(str(request.body.get("text", "")))
        return "\n".join(lines)

    __repr__ = __str__


def explain(
    program: Program,
    backend: Backend,
    args: Sequence[Any],
    arguments: Mapping[str, Any],
    defaults: GenParams,
    answers: Answers,
) -> Explanation:
    """Run ``program`` on placeholder answers; see ``SglFunction.explain``."""
    script = Script(answers)
    rehearsed(script, program, backend, args, arguments, defaults)
    script.check_used()
    return Explanation(tuple(script.requests))


def rehearsed(
    script: Script,
    program: Program,
    backend: Backend,
    args: Sequence[Any],
    arguments: Mapping[str, Any],
    defaults: GenParams,
) -> None:
    """Run ``program`` on the answers of ``script``. Raises SglangError if the program fails."""
    try:
        with _tracing(Stage(script)):
            script.carry_out(program, backend, args, arguments, defaults)
    except Endless as error:
        raise SglangError(str(error)) from None
    except SglangError:
        raise
    except Exception as error:
        raise SglangError(
            f"after {len(script.requests)} calls the program raised {described(error)}; generated "
            "values stand as ⟨name⟩ here: give answers={'name': text} for those that it computes "
            "with"
        ) from error


# Printing


def _shared(texts: Sequence[str], text: Any) -> tuple[str, Any]:
    """Return words for the longest beginning that ``text`` shares with one of the earlier
    ``texts``, and the rest of ``text``; "" and the whole text if that beginning is short."""
    if not isinstance(text, str) or not texts:
        return "", text
    lengths = [common(text, one) for one in texts]
    size = max(lengths)
    if size < SHARED_CHARS:
        return "", text
    number = lengths.index(size) + 1
    whole = size == len(texts[number - 1])
    begin = f"that of {number}" if whole else f"the first {size} characters of {number}"
    return begin, text[size:]


def _lines(name: str, value: Any, indent: str) -> Iterator[str]:
    """Yield the printed lines of a request's value. Texts are quoted line by line."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = [("-", item) for item in value]
    if not all(_is_brief(item) for _, item in items):
        yield f"{indent}{name}:"
        for key, item in items:
            yield from _lines(str(key), item, indent + "  ")
    elif isinstance(value, str) and "\n" in value[:-1]:
        yield f"{indent}{name}:"
        yield from (f"{indent}  {_quoted(line)}" for line in value.splitlines(keepends=True))
    else:
        yield f"{indent}{name}: {_quoted(value)}"


def _is_brief(value: Any) -> bool:
    """Return True if a part of a value may be printed on one line with the other parts."""
    if isinstance(value, str):
        return "\n" not in value[:-1] and len(value) <= MAX_DATA_CHARS
    if isinstance(value, (list, tuple)):
        return all(map(_is_brief, value))
    return not isinstance(value, Mapping)


def _quoted(value: Any) -> str:
    if isinstance(value, str) and value.startswith("data:") and len(value) > MAX_DATA_CHARS:
        return f'"{value[:MAX_DATA_CHARS]}..." ({len(value)} characters)'
    return json.dumps(value, ensure_ascii=False, default=repr)
