"""Arrays of a shape as alternatives of a rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Protocol

from sglang.srt.grammar.schema.quoted import literal
from sglang.srt.grammar.schema.schema_document import Refusal
from sglang.srt.grammar.schema.value_shapes import ANY, Array, Number, Shape, State, String, Word

MOST_CONTAINING = 16  # indices at which an item of ``contains`` may stand
MOST_UNIQUE = 64  # bits of llguidance's parameters


class ArrayEmitter(Protocol):
    """Rules being written (``emit.Emitter``), as arrays need them."""

    prefix: str
    rules: list[str]
    comma: str
    blank: str

    def rule(self, state: State) -> str:
        """The name of a state's rule."""
        ...

    def dead(self, state: State) -> bool:
        """Whether no value satisfies a state."""
        ...

    def shapes(self, state: State) -> list[Shape]:
        """The shapes of a state's values."""
        ...


def spread(shape: Shape) -> list[Shape]:
    """The shape; for short arrays with ``contains``, one shape for each index of that item."""
    if not isinstance(shape, Array) or not shape.contains or shape.high is None:
        return [shape]
    found = [replace(shape, contains=frozenset())]
    for state, at in sorted(shape.contains, key=lambda entry: entry[1]):
        if shape.high > MOST_CONTAINING:
            raise Refusal(at, f"'contains' needs maxItems of at most {MOST_CONTAINING}, or none.")
        found = [
            replace(one, parts=(*one.parts, ((ANY,) * i + (state,), ANY)), low=max(one.low, i + 1))
            for one in found
            for i in range(shape.high)
        ]
    return list(found)


def children_of_array(shape: Array) -> Iterator[State]:
    last = shape.prefix + 1 if shape.high is None else min(shape.prefix + 1, shape.high)
    for at in range(last):
        yield shape.item(at)
    for state, _ in shape.contains:
        yield shape.item(0) | state


def write_array(emitter: ArrayEmitter, shape: Array) -> list[str]:
    """Alternatives for arrays of a shape; none where there is no such array. Raises Refusal."""
    for at in range(shape.prefix + 1):
        if (shape.high is None or at < shape.high) and emitter.dead(shape.item(at)):
            shape = replace(shape, high=at)
    if shape.high is not None and shape.low > shape.high:
        return []
    if shape.unique and shape.high != 0 and shape.high != 1:
        return _unique(emitter, shape)
    if shape.contains:
        return _containing(emitter, shape)
    return _framed(emitter, "" if shape.high == 0 else _items(emitter, shape), shape.low == 0)


def _framed(emitter: ArrayEmitter, content: str, empty: bool) -> list[str]:
    blank = emitter.blank
    found = [f'"[" {blank}{content} {blank}"]"'] if content else []
    return [*found, f'"[" {blank}"]"'] if empty else found


def _items(emitter: ArrayEmitter, shape: Array) -> str:
    """The rule text of one item or more."""
    comma, least = emitter.comma, max(shape.low, 1)
    first = shape.prefix
    last = first if shape.high is None else min(first, shape.high)
    text = ""
    if shape.high is None or shape.high > first:
        begun = max(first, 1)  # items that stand before the repetition
        high = None if shape.high is None else shape.high - begun
        text = repeated(f"{comma} {emitter.rule(shape.item(first))}", max(0, least - begun), high)
    for at in range(last - 1, 0, -1):
        text = f"{comma} {emitter.rule(shape.item(at))} {text}"
        if at >= least:
            text = f"({text})?"
    return f"{emitter.rule(shape.item(0))} {text}"


def repeated(text: str, low: int, high: int | None) -> str:
    """A text ``low`` to ``high`` times; None: without limit."""
    if high is None:
        return f"({text})*" if low == 0 else f"({text}){{{low},}}"
    return f"({text}){{{low},{high}}}" if high else ""


def _containing(emitter: ArrayEmitter, shape: Array) -> list[str]:
    """Alternatives without a limit: items, one that satisfies ``contains``, items."""
    entries = sorted(shape.contains, key=lambda entry: entry[1])
    if len(entries) > 1 or shape.prefix or shape.low > 1:
        raise Refusal(
            entries[0][1],
            f"'contains' beside other conditions needs maxItems of at most {MOST_CONTAINING}.",
        )
    hit = shape.item(0) | entries[0][0]
    if emitter.dead(hit):
        return []
    item, comma = emitter.rule(shape.item(0)), emitter.comma
    return _framed(emitter, f"({item} {comma})* {emitter.rule(hit)} ({comma} {item})*", False)


def _unique(emitter: ArrayEmitter, shape: Array) -> list[str]:
    """Alternatives with each value of an item at most once; one bit a value marks those written."""
    values = _values(emitter, shape)
    if shape.low > len(values):
        return []
    high = len(values) if shape.high is None else min(shape.high, len(values))
    name = f"{emitter.prefix}u{len(emitter.rules)}"
    options = [f'"" %if bit_count_ge(_, {shape.low})']
    for bit, value in enumerate(values):
        options.append(
            f"{emitter.comma} {value} {name}::set_bit({bit}) "
            f"%if and(bit_clear({bit}), bit_count_lt(_, {high}))"
        )
    emitter.rules.append(f"{name}::_: " + "\n  | ".join(options))
    first = " | ".join(f"{value} {name}::{1 << bit:#x}" for bit, value in enumerate(values))
    return _framed(emitter, f"({first})" if values and high else "", shape.low == 0)


def _values(emitter: ArrayEmitter, shape: Array) -> list[str]:
    """All values of an item, as strings of Lark. Raises Refusal."""
    found: dict[object, str] = {}
    if shape.prefix or shape.contains:
        raise Refusal(shape.unique, "'uniqueItems' beside prefixItems or contains is not enforced.")
    for one in emitter.shapes(shape.item(0)):
        if isinstance(one, Word):
            found[one.text] = f'"{one.text}"'
        elif isinstance(one, String) and one.values is not None:
            found |= {json.dumps(text): literal(text) for text in one.values}
        elif isinstance(one, Number) and one.values is not None:
            found |= {Decimal(text): f'"{text}"' for text in one.values}
        else:
            raise Refusal(
                shape.unique,
                "'uniqueItems' is enforced only where items are an enum of scalars; give items an "
                "enum, or drop it and check the result.",
            )
    if len(found) > MOST_UNIQUE:
        raise Refusal(
            shape.unique,
            f"'uniqueItems' over {len(found)} values; at most {MOST_UNIQUE}. Use a smaller enum.",
        )
    return list(found.values())
