"""Numbers and strings of a shape as terminals of llguidance's Lark."""

from __future__ import annotations

import math
from typing import Any

from sglang.srt.grammar.schema.numbers import number
from sglang.srt.grammar.schema.quoted import STRING, literals, sized
from sglang.srt.grammar.schema.unmatched_terminal import unmatched
from sglang.srt.grammar.schema.value_shapes import Number, String


def string_terminal(shape: String) -> str:
    if shape.values is not None:
        return literals(shape.values)
    parts = [pattern.expression for pattern in sorted(shape.like, key=lambda p: p.expression)]
    if shape.low or shape.high is not None:
        parts.append(sized(shape.low, shape.high))
    if shape.unlike:
        out = sorted(pattern.expression for pattern in shape.unlike)
        parts = [*(parts or [STRING]), *(f"~{text}" for text in out)]
    return conjunction(parts or [STRING])


def number_terminal(shape: Number) -> str | None:
    """None where no number has the shape."""
    if shape.values is not None:
        return "(" + " | ".join(f'"{text}"' for text in shape.values) + ")"
    text = number(shape.low, shape.high, shape.integer, shape.fraction)
    if text is None:
        return None
    if shape.multiple > 1:
        text = conjunction([f"({text})", f"/-?({_ends(shape.multiple)})/"])
    if (shape.multiple > 1 or not shape.integer) and unmatched(text):
        return None
    return text


def needs_json(shape: Number) -> bool:
    """Whether the numbers are multiples of one that no ending tells."""
    return shape.values is None and shape.multiple > 1 and not _decimal(shape.multiple)


def number_json(shape: Number) -> dict[str, Any]:
    """A schema that llguidance enforces itself."""
    schema: dict[str, Any] = {"type": "integer", "multipleOf": shape.multiple}
    if shape.low is not None:
        least = math.ceil(shape.low[0])
        schema["minimum"] = least + (least == shape.low[0] and shape.low[1])
    if shape.high is not None:
        most = math.floor(shape.high[0])
        schema["maximum"] = most - (most == shape.high[0] and shape.high[1])
    return schema


def conjunction(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' & '.join(parts)})"


def _decimal(multiple: int) -> bool:
    """Whether the last digits tell a multiple."""
    return 10_000 % multiple == 0 and multiple <= 10_000


def _ends(multiple: int) -> str:
    digits = 1
    while 10**digits % multiple:
        digits += 1
    ends = [str(n).zfill(digits) for n in range(0, 10**digits, multiple)]
    short = [str(n) for n in range(0, 10 ** (digits - 1), multiple)] if digits > 1 else []
    return f"[0-9]*({'|'.join(ends)})" + "".join(f"|{text}" for text in short)
