"""JSON that stands in a text, as language models write it, with bounded numbers and depth."""

from __future__ import annotations

import json
import math
import re
from typing import Any

MOST_DEPTH = 64  # levels of a JSON value
LARGEST = 1 << 63  # a whole number is below it
FENCE = re.compile(r"```[A-Za-z0-9]*\s*\n(.*?)(?:```|\Z)", re.DOTALL)
OPENING = re.compile(r"[{\[]")


def json_in(text: str) -> Any:
    """Return the JSON value that the text is, that its first fenced block is, or that begins with
    its first "{" or "[". Raise ValueError, or RecursionError for what is far too deep."""
    fenced = FENCE.search(text)
    for candidate in (text, fenced[1]) if fenced else (text,):
        try:
            return _bounded(DECODER.decode(candidate.strip()))
        except json.JSONDecodeError as error:
            reason = error
    begin = OPENING.search(text)
    if begin is None:
        raise ValueError(f"it is not JSON ({reason.msg} at character {reason.pos})")
    return _bounded(DECODER.raw_decode(text, begin.start())[0])


def _bounded(value: Any) -> Any:
    """Return ``value``. Raise ValueError where it is too deep, or has a text that is no UTF-8."""
    level, depth = [value], 1
    while level:
        if depth > MOST_DEPTH:
            raise ValueError(f"its JSON is more than {MOST_DEPTH} levels deep")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, str):
                one.encode()
            elif isinstance(one, dict):
                inner += [*one, *one.values()]
            elif isinstance(one, list):
                inner += one
        level, depth = inner, depth + 1
    return value


def whole_number(digits: str) -> int:
    """Return a whole number. Raise ValueError where it has more than 64 bits."""
    if len(digits) > 20 or not -LARGEST <= (number := int(digits)) < LARGEST:
        raise ValueError(f"{digits:.24} is no whole number of 64 bits")
    return number


def real_number(text: str) -> float:
    """Return a number. Raise ValueError for infinity and NaN."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.24} is no finite number")
    return number


DECODER = json.JSONDecoder(
    parse_int=whole_number, parse_float=real_number, parse_constant=real_number
)
