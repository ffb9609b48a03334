"""Keywords of numbers and strings: how a keyword narrows a shape, and which shapes fail it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex import BeyondBudget
from sglang.srt.grammar.schema.numbers import MOST_DIGITS, Bound, exact
from sglang.srt.grammar.schema.schema_document import Refusal, SchemaNode
from sglang.srt.grammar.schema.string_formats import HINTS, LENGTHS, REFUSED, format_pattern, meant
from sglang.srt.grammar.schema.string_patterns import Pattern, pattern_of
from sglang.srt.grammar.schema.value_shapes import (
    Number,
    Shape,
    String,
    fits_number,
    tighter_high,
    tighter_low,
)

MOST_MULTIPLE = 1 << 31
MOST_LENGTH = 1 << 20


def narrowed(shape: Shape, node: SchemaNode, keyword: str) -> Shape | None:
    """Return the values of ``shape`` for which the keyword holds, as a shape; None if there are
    none."""
    found: Shape | None = shape
    if isinstance(shape, Number) and keyword in NUMBERS:
        found = NUMBERS[keyword](shape, node, keyword)
    elif isinstance(shape, String) and keyword in STRINGS:
        found = STRINGS[keyword](shape, node, keyword)
    return None if found is None else settled(found)


def failing(shape: Shape, node: SchemaNode, keyword: str) -> Iterator[Shape]:
    """Yield shapes of those values of ``shape`` for which the keyword does not hold."""
    value = node.value[keyword]
    if isinstance(shape, Number) and keyword in NUMBERS:
        if keyword == "multipleOf":
            raise Refusal(f"{node.pointer}/multipleOf", "cannot be enforced inside not.")
        bound = _bound(node, keyword)
        if bound is None:
            return
        number, out = bound
        if keyword in ("minimum", "exclusiveMinimum"):
            found = replace(shape, high=tighter_high(shape.high, (number, not out)))
        else:
            found = replace(shape, low=tighter_low(shape.low, (number, not out)))
        yield from _some(found)
    elif isinstance(shape, String) and keyword in STRINGS:
        if keyword == "minLength":
            most = size(node, keyword) - 1
            if most >= 0:
                yield from _some(_shorter(shape, most))
        elif keyword == "maxLength":
            yield from _some(replace(shape, low=max(shape.low, size(node, keyword) + 1)))
        else:
            pattern = _pattern(node, keyword) if keyword == "pattern" else _format(node, value)
            if pattern is not None:
                yield from _some(replace(shape, unlike=shape.unlike | {pattern}))


def settled(shape: Shape) -> Shape | None:
    """Return the shape without impossible values; None if it is certainly empty."""
    if isinstance(shape, Number):
        if shape.values is not None:
            values = tuple(text for text in shape.values if fits_number(shape, text))
            return Number(values=values) if values else None
        low, high = shape.low, shape.high
        if low is not None and high is not None:
            if low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1])):
                return None
            if shape.integer and math.floor(high[0]) < math.ceil(low[0]):
                return None
        return None if shape.integer and shape.fraction else shape
    if isinstance(shape, String):
        if shape.values is not None:
            like, unlike = shape.like, shape.unlike
            values = tuple(
                text for text in shape.values
                if shape.low <= len(text) and (shape.high is None or len(text) <= shape.high)
                and all(p.fits(text) for p in like) and not any(p.fits(text) for p in unlike)
            )  # fmt: skip
            return String(values=values) if values else None
        if shape.like & shape.unlike or (shape.high is not None and shape.low > shape.high):
            return None
    return shape


def size(node: SchemaNode, keyword: str) -> int:
    """Return the value of a keyword that counts, such as maxLength. Raises Refusal."""
    value = node.value[keyword]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refusal(
            f"{node.pointer}/{keyword}", f"{value!r} is not a count; use 0, 1, 2 and so on."
        )
    return min(value, 1 << 62)


def number_text(value: int | float) -> str:
    """Return a number as JSON writes it."""
    return json.dumps(value)


def _some(shape: Shape) -> Iterator[Shape]:
    found = settled(shape)
    if found is not None:
        yield found


def _bound(node: SchemaNode, keyword: str) -> Bound | None:
    """Return the bound of a keyword and whether the bound itself is excluded; None for draft 4's
    ``false``."""
    value, at = node.value[keyword], f"{node.pointer}/{keyword}"
    out = keyword.startswith("exclusive")
    if isinstance(value, bool) and out:  # draft 4: a property of the bound beside it
        keyword = keyword.replace("exclusiveM", "m")
        if not value or keyword not in node.value:
            return None
        value = node.value[keyword]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Refusal(at, f"{value!r} is not a number.")
    found = exact(value)
    if len(f"{found:f}") > MOST_DIGITS:
        raise Refusal(at, f"has more than {MOST_DIGITS} digits; use a smaller number.")
    return found, out


def _low(shape: Number, node: SchemaNode, keyword: str) -> Shape | None:
    return replace(shape, low=tighter_low(shape.low, _bound(node, keyword)))


def _high(shape: Number, node: SchemaNode, keyword: str) -> Shape | None:
    return replace(shape, high=tighter_high(shape.high, _bound(node, keyword)))


def _multiple(shape: Number, node: SchemaNode, keyword: str) -> Shape | None:
    value, at = node.value[keyword], f"{node.pointer}/{keyword}"
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise Refusal(at, f"{value!r} is not a number above 0.")
    if isinstance(value, float) and not value.is_integer():
        raise Refusal(
            at, f"{value!r} is not whole, and validators round; count in units of it instead."
        )
    multiple = math.lcm(shape.multiple, int(value))
    if multiple > MOST_MULTIPLE:
        raise Refusal(at, f"{multiple} is more than {MOST_MULTIPLE}; use a smaller number.")
    return replace(shape, multiple=multiple, integer=True)


def _shorter(shape: String, most: int) -> String:
    return replace(shape, high=most if shape.high is None else min(shape.high, most))


def _min_length(shape: String, node: SchemaNode, keyword: str) -> Shape | None:
    least = size(node, keyword)
    if least > MOST_LENGTH:
        raise Refusal(f"{node.pointer}/{keyword}", f"{least} is more than {MOST_LENGTH}.")
    return replace(shape, low=max(shape.low, least))


def _max_length(shape: String, node: SchemaNode, keyword: str) -> Shape | None:
    most = size(node, keyword)
    return _shorter(shape, most) if most <= MOST_LENGTH else shape


def _pattern(node: SchemaNode, keyword: str) -> Pattern:
    return carried(node.value[keyword], f"{node.pointer}/{keyword}")


def carried(source: Any, at: str) -> Pattern:
    """Return a pattern of the schema in compiled form. Raises Refusal."""
    if not isinstance(source, str):
        raise Refusal(at, f"{source!r} is not a string.")
    try:
        return pattern_of(source)
    except BeyondBudget as error:
        raise Refusal(at, f"{source!r} is not supported: {error}.") from None
    except GrammarError as error:
        raise Refusal(at, f"{source!r}: {error}.") from None


def _format(node: SchemaNode, name: Any) -> Pattern | None:
    if not isinstance(name, str):
        raise Refusal(f"{node.pointer}/format", f"{name!r} is not a string.")
    found = format_pattern(name)
    if found is None and name not in HINTS:
        guess = meant(name)
        if guess is not None:
            other = "" if guess in REFUSED else f"{guess!r} or "
            raise Refusal(
                f"{node.pointer}/format",
                f"{name!r} cannot be enforced; use {other}a pattern.",
            )
    return found


def _like(shape: String, node: SchemaNode, keyword: str) -> Shape | None:
    return replace(shape, like=shape.like | {_pattern(node, keyword)})


def _formatted(shape: String, node: SchemaNode, keyword: str) -> Shape | None:
    name = node.value[keyword]
    pattern = _format(node, name)
    if pattern is None:
        return shape
    shape = replace(shape, like=shape.like | {pattern})
    return _shorter(shape, LENGTHS[name]) if name in LENGTHS else shape


Narrow = Callable[[Any, SchemaNode, str], Shape | None]
NUMBERS: dict[str, Narrow] = {
    "minimum": _low,
    "exclusiveMinimum": _low,
    "maximum": _high,
    "exclusiveMaximum": _high,
    "multipleOf": _multiple,
}
STRINGS: dict[str, Narrow] = {
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _like,
    "format": _formatted,
}
