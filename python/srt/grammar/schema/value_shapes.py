"""Shapes: sets of JSON values of one type, described by positive conditions only.

A schema becomes a list of shapes; a value is valid if it has any of them (``normal``). The content
of an array or object is described by *states*. A state is a set of schemas, by number, that a value
must satisfy all at once; ``~number`` is a schema that it must not satisfy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from sglang.srt.grammar.schema.numbers import Bound, exact
from sglang.srt.grammar.schema.string_patterns import Pattern

State = frozenset[int]
Written = tuple[int, ...]  # where in a schema a keyword stands; compares as what is read first
ANY: State = frozenset()


@dataclass(frozen=True)
class Word:
    """The value null, true or false."""

    text: str


@dataclass(frozen=True)
class Number:
    """A number. ``values``, if given, replace the bounds: exactly these numbers, as the schema
    writes them."""

    integer: bool = False
    fraction: bool = False
    low: Bound | None = None
    high: Bound | None = None
    multiple: int = 1
    values: tuple[str, ...] | None = None


@dataclass(frozen=True)
class String:
    """A string. Lengths count code points."""

    low: int = 0
    high: int | None = None
    like: frozenset[Pattern] = frozenset()
    unlike: frozenset[Pattern] = frozenset()
    values: tuple[str, ...] | None = None

    @property
    def conditions(self) -> int:
        """Return the number of conditions. Two or more may contradict each other."""
        sized = self.low > 0 or self.high is not None
        return len(self.like) + len(self.unlike) + sized


@dataclass(frozen=True)
class Array:
    """An array. ``parts``: for each schema its prefix of items, and the schema of all further
    items. ``contains``: for each of these states the array must have an item that satisfies it."""

    parts: tuple[tuple[tuple[State, ...], State], ...] = ()
    low: int = 0
    high: int | None = None
    unique: str = ""  # pointer of the keyword; "" without uniqueItems
    contains: frozenset[tuple[State, str]] = frozenset()

    def item(self, at: int) -> State:
        """Return the state of the item at an index."""
        found: State = ANY
        for prefix, rest in self.parts:
            found |= prefix[at] if at < len(prefix) else rest
        return found

    @property
    def prefix(self) -> int:
        """Return the number of items after which all items have the same state."""
        return max((len(prefix) for prefix, _ in self.parts), default=0)


@dataclass(frozen=True, eq=False)
class Scope:
    """``properties``, ``patternProperties`` and ``additionalProperties`` of one schema."""

    properties: dict[str, State]
    patterns: tuple[tuple[Pattern, State], ...] = ()
    additional: State = ANY

    def named(self, name: str) -> State:
        """Return the state of a property's value."""
        found = self.properties.get(name, ANY)
        known = name in self.properties
        for pattern, state in self.patterns:
            if pattern.fits(name):
                found, known = found | state, True
        return found if known else found | self.additional

    def matching(self, patterns: frozenset[Pattern]) -> State:
        """Return the state of a value whose name is in no ``properties``, by the patterns that the
        name matches."""
        found: State = ANY
        known = False
        for pattern, state in self.patterns:
            if pattern in patterns:
                found, known = found | state, True
        return found if known else found | self.additional


@dataclass(frozen=True, eq=False)
class Other:
    """A required property with a name that is not in ``names``, matches ``inside`` and matches none
    of ``outside``."""

    state: State
    names: frozenset[str] = frozenset()
    inside: frozenset[Pattern] = frozenset()
    outside: frozenset[Pattern] = frozenset()


@dataclass(frozen=True)
class Object:
    """Requirements of a schema on an object.

    Attributes:
        mentions: each name that the schema mentions, once, with its origin, in the order of the
            output: names in ``properties`` first, then names that only ``required`` or a similar
            keyword has.
        names: the state that the value of each name must satisfy.
    """

    scopes: tuple[Scope, ...] = ()
    mentions: tuple[tuple[tuple[bool, Written], str], ...] = ()
    required: frozenset[str] = frozenset()
    names: State = ANY
    low: int = 0
    high: int | None = None
    some: tuple[Other, ...] = ()
    counted: str = ""  # pointer of the keyword that counts

    @property
    def order(self) -> list[str]:
        """Return the mentioned names in the order in which the output writes them."""
        return [name for _, name in self.mentions]

    def mentioning(self, names: Iterable[str], written: Written, required: bool) -> Object:
        """Return the object with more mentioned names. ``required``: the properties must be
        present, with any value."""
        first = {name: key for key, name in self.mentions}
        for at, name in enumerate(names):
            key = (required, (*written, at))
            first[name] = min(first.get(name, key), key)
        found = sorted((key, name) for name, key in first.items())
        return replace(self, mentions=tuple(found))

    def named(self, name: str) -> State:
        found: State = ANY
        for scope in self.scopes:
            found |= scope.named(name)
        return found

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        found = [pattern for scope in self.scopes for pattern, _ in scope.patterns]
        return tuple(dict.fromkeys(found))

    def matching(self, patterns: frozenset[Pattern]) -> State:
        found: State = ANY
        for scope in self.scopes:
            found |= scope.matching(patterns)
        return found


Shape = Word | Number | String | Array | Object
EVERY: tuple[Shape, ...] = (
    Word("null"), Word("true"), Word("false"), Number(), String(), Array(), Object()
)  # fmt: skip


def apart(one: list[Shape], other: list[Shape]) -> bool:
    """Return whether certainly no value has a shape of both lists."""
    return all(_differ(left, right) for left in one for right in other)


def _differ(left: Shape, right: Shape) -> bool:
    if type(left) is not type(right):
        return True
    if isinstance(left, Word) and isinstance(right, Word):
        return left.text != right.text
    if isinstance(left, String) and isinstance(right, String):
        return bool(left.values and right.values) and set(left.values or ()).isdisjoint(
            right.values or ()
        )
    if isinstance(left, Number) and isinstance(right, Number):
        if left.values is None or right.values is None:
            return False
        return set(map(Decimal, left.values)).isdisjoint(map(Decimal, right.values))
    return False


def fits_number(shape: Number, text: str) -> bool:
    """Return whether a number, as JSON writes it, has the shape."""
    value = Decimal(text)
    whole = value == value.to_integral_value()
    if shape.values is not None and not any(Decimal(one) == value for one in shape.values):
        return False
    if (shape.integer and not whole) or (shape.fraction and whole):
        return False
    if shape.multiple != 1 and (not whole or int(value) % shape.multiple):
        return False
    low, high = shape.low, shape.high
    if low is not None and (value < low[0] or (value == low[0] and low[1])):
        return False
    return not (high is not None and (value > high[0] or (value == high[0] and high[1])))


def fits_string(shape: String, text: str) -> bool:
    """Return whether a string has the shape."""
    if shape.values is not None and text not in shape.values:
        return False
    if len(text) < shape.low or (shape.high is not None and len(text) > shape.high):
        return False
    return all(p.fits(text) for p in shape.like) and not any(p.fits(text) for p in shape.unlike)


def tighter_low(one: Bound | None, other: Bound | None) -> Bound | None:
    return max((bound for bound in (one, other) if bound is not None), default=None)


def tighter_high(one: Bound | None, other: Bound | None) -> Bound | None:
    bounds = [bound for bound in (one, other) if bound is not None]
    return min(bounds, key=lambda bound: (bound[0], not bound[1]), default=None)


__all__ = [
    "ANY", "EVERY", "Array", "Number", "Object", "Scope", "Shape", "State", "String", "Word",
    "Written",    "apart", "exact", "fits_number", "fits_string", "tighter_high", "tighter_low",
]  # fmt: skip
