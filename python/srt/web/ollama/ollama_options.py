"""Options: converts Ollama's ``options`` to fields of a chat request.

The rules are Ollama's: unknown names, null, and options for loading a model are ignored; a value of
the wrong type is refused; a number for an integer option loses its fraction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from sglang.srt.requests.request_error import RequestError, Reworded, shown

DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Ollama's defaults for missing options. Its default repetition penalty is left out, so that a
request without one has no penalty."""

_FIELDS = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_WHOLE = frozenset({
    "num_predict", "top_k", "seed", "num_ctx", "num_batch", "num_gpu", "num_keep", "num_thread",
    "main_gpu", "repeat_last_n",
})  # fmt: skip
_REAL = frozenset({
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty",
})  # fmt: skip
_SPELLINGS = {re.compile(rf"^{ours}\b"): f"options.{theirs}" for theirs, ours in _FIELDS.items()}
_FORMAT = re.compile(r"^(response_format \(or json_schema\)|json_schema)")
_IMAGE = re.compile(r"^(messages\[\d+\])\.content(\[\d+\])\.image_url")
MAX_WHOLE = 1 << 62


def fields_of(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Convert options to fields of ``CompletionFields``. Raises RequestError."""
    given = dict(DEFAULTS)
    for name, value in (options or {}).items():
        if value is None:
            continue
        if name in _WHOLE:
            value = _whole(name, value)
        elif name in _REAL:
            value = _real(name, value)
        elif name == "stop":
            value = _texts(value)
        if name in _FIELDS:
            given[name] = value
    return {_FIELDS[name]: value for name, value in _neutral(given).items()}


def _neutral(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options; values that mean "off" in Ollama are removed or replaced."""
    found = dict(given)
    if found.get("num_predict", 1) <= 0:  # -1: no limit, -2: until the context is full
        del found["num_predict"]
    if found["top_k"] <= 0:
        found["top_k"] = -1
    if found["top_p"] <= 0:  # the most likely token is always kept
        found["top_p"], found["top_k"] = 1.0, 1
    if found.get("seed", 0) < 0:
        del found["seed"]
    return found


def spelled(images: str = "images") -> Reworded:
    """Return a block that renames the fields in errors about sampling and images to Ollama's.

    Args:
        images: name of the images' field; ``{message}`` in it becomes the message's path.
    """
    return Reworded(partial(_spelled, images))


def _spelled(images: str, error: RequestError) -> RequestError:
    message = error.message
    if found := _IMAGE.match(message):
        message = f"{images.format(message=found[1])}{found[2]}{message[found.end() :]}"
    for ours, theirs in _SPELLINGS.items():
        message = ours.sub(theirs, message)
    return error.reworded(_FORMAT.sub("format", message), error.param)


def _refused(name: str, value: Any, kind: str) -> RequestError:
    return RequestError(f"options.{name} is {shown(value)}; give {kind}.", "options")


def _whole(name: str, value: Any) -> int:
    number = _real(name, value, "a whole number")
    if abs(number) > MAX_WHOLE:
        raise _refused(name, value, "a whole number that fits in 63 bits")
    return int(value)


def _real(name: str, value: Any, kind: str = "a number") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise _refused(name, value, kind)
    return value


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _refused("stop", value, "a list of texts")
    return [text for text in texts if text]
