"""EnumValues: the values of ``enum`` or ``const``, by type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from sglang.srt.grammar.schema.scalars import number_text, settled
from sglang.srt.grammar.schema.schema_document import Refusal
from sglang.srt.grammar.schema.string_patterns import one_of
from sglang.srt.grammar.schema.value_shapes import Array, Number, Object, Shape, String, Word

MOST_LEFT_OUT = 64  # numbers


@dataclass(frozen=True)
class EnumValues:
    """``words``: null, true, false; ``numbers`` as JSON writes them."""

    words: frozenset[str]
    numbers: tuple[str, ...]
    strings: tuple[str, ...]
    arrays: tuple[list[Any], ...]
    objects: tuple[dict[str, Any], ...]

    @staticmethod
    def of(values: list[Any]) -> EnumValues:
        words: set[str] = set()
        numbers: dict[str, None] = {}
        strings: dict[str, None] = {}
        arrays: list[list[Any]] = []
        objects: list[dict[str, Any]] = []
        for value in values:
            if value is None or isinstance(value, bool):
                words.add({None: "null", True: "true", False: "false"}[value])
            elif isinstance(value, int | float):
                numbers[number_text(value)] = None
            elif isinstance(value, str):
                strings[value] = None
            elif isinstance(value, list):
                arrays.append(value)
            else:
                objects.append(value)
        return EnumValues(
            frozenset(words), tuple(numbers), tuple(strings), tuple(arrays), tuple(objects)
        )

    def inner(self, shape: Array | Object) -> Iterator[dict[str, Any]]:
        """A schema for each value of the shape's type."""
        if isinstance(shape, Array):
            for items in self.arrays:
                yield {
                    "prefixItems": [{"const": item} for item in items],
                    "minItems": len(items),
                    "maxItems": len(items),
                }
        else:
            for fields in self.objects:
                yield {
                    "properties": {name: {"const": value} for name, value in fields.items()},
                    "required": list(fields),
                    "additionalProperties": False,
                }

    def others(self, shape: Shape, at: str) -> Iterable[Shape]:
        """The shapes of the shape's values that are none of these."""
        if isinstance(shape, Word):
            return [] if shape.text in self.words else [shape]
        if isinstance(shape, String):
            if not self.strings:
                return [shape]
            left_out = one_of(frozenset(self.strings))
            found = settled(replace(shape, unlike=shape.unlike | {left_out}))
            return [] if found is None else [found]
        if isinstance(shape, Number):
            return self._other_numbers(shape, at)
        if self.arrays if isinstance(shape, Array) else self.objects:
            raise Refusal(at, "arrays and objects cannot be left out; say what is allowed instead.")
        return [shape]

    def _other_numbers(self, shape: Number, at: str) -> list[Shape]:
        left_out = sorted({Decimal(text) for text in self.numbers})
        if shape.values is not None:
            kept = tuple(text for text in shape.values if Decimal(text) not in left_out)
            return [replace(shape, values=kept)] if kept else []
        if len(left_out) > MOST_LEFT_OUT:
            raise Refusal(at, f"leaves out {len(left_out)} numbers; at most {MOST_LEFT_OUT}.")
        found: list[Shape] = []
        rest: Number | None = shape
        for value in left_out:
            if rest is None:
                break
            below = settled(replace(rest, high=_least(rest.high, value)))
            found += [below] if below is not None else []
            above = settled(replace(rest, low=_most(rest.low, value)))
            rest = above if isinstance(above, Number) else None
        return [*found, *([rest] if rest is not None else [])]


def _least(high: Any, value: Decimal) -> Any:
    from sglang.srt.grammar.schema.value_shapes import tighter_high

    return tighter_high(high, (value, True))


def _most(low: Any, value: Decimal) -> Any:
    from sglang.srt.grammar.schema.value_shapes import tighter_low

    return tighter_low(low, (value, True))
