"""Normalizer: a state as the list of shapes that its values may have.

Every keyword narrows the shapes or multiplies them: ``anyOf`` is one list after the other,
``oneOf`` the same where its branches exclude each other, else each of them without the others;
``not`` is what its keywords leave out, and ``if`` one of its two cases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang.srt.grammar.schema.containers import fail_container, narrow_container
from sglang.srt.grammar.schema.enum_values import EnumValues
from sglang.srt.grammar.schema.scalars import failing, narrowed, settled
from sglang.srt.grammar.schema.schema_document import Document, Refusal, SchemaNode
from sglang.srt.grammar.schema.schema_keywords import (
    ALONE,
    EVALUATING,
    OF_ARRAYS,
    OF_NUMBERS,
    OF_OBJECTS,
    OF_STRINGS,
    REFUSED,
    TYPES,
    places_of,
    slip,
)
from sglang.srt.grammar.schema.terminals import string_terminal
from sglang.srt.grammar.schema.unmatched_terminal import unmatched
from sglang.srt.grammar.schema.value_shapes import (
    ANY,
    EVERY,
    Array,
    Number,
    Object,
    Shape,
    State,
    String,
    Word,
    Written,
    apart,
    fits_number,
    fits_string,
)

MOST_SHAPES = 512
MOST_WORK = 100_000  # keywords applied to shapes, some 20 us each
PROBE = 100  # of these for asking whether patterns exclude each other
MOST_ENUM = 10_000
SCALARS = frozenset((*OF_NUMBERS, *OF_STRINGS))
CONTAINERS = frozenset((*OF_ARRAYS, *OF_OBJECTS))
FIRST = ("type", "const", "enum", "$ref")  # keywords that leave little
LAST = ("allOf", "anyOf", "oneOf", "if", "not", "dependencies", "dependentRequired",
        "dependentSchemas")  # fmt: skip


class Normalizer:
    """Shapes by state, for the schemas of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.used: set[str] = set()  # pointers of keywords that had a say
        self._shapes: dict[State, list[Shape]] = {}
        self._open: set[State] = set()
        self._inside: list[int] = []  # schemas being applied to the same value
        self._entered = 0  # schemas applied so far
        self.written: Written = ()  # position of the keyword being applied to the value
        self._work = 0

    def shapes(self, state: State) -> list[Shape]:
        """The shapes of a state that are not known to be empty. Raises Refusal."""
        found = self._shapes.get(state)
        if found is None:
            if state in self._open:
                return [Word("null")]  # in progress: taken not to be empty
            self._open.add(state)
            inside, self._inside = self._inside, []
            written, self.written = self.written, ()
            try:
                found = self._state(state)
            finally:
                self._inside, self.written = inside, written
                self._open.discard(state)
            self._shapes[state] = found
        return found

    def empty(self, state: State) -> bool:
        return not self.shapes(state)

    def _state(self, state: State) -> list[Shape]:
        found: list[Shape] = list(EVERY)
        for number in sorted(state, key=lambda n: (n < 0, abs(n))):
            found = self.without(found, ~number) if number < 0 else self.under(found, number)
        kept = [shape for shape in dict.fromkeys(found) if not self._hollow(shape)]
        return kept

    def _hollow(self, shape: Shape) -> bool:
        """Whether a part that must be there cannot be."""
        if isinstance(shape, Object):
            return any(self.empty(shape.named(name)) for name in shape.required)
        if isinstance(shape, Array):
            first = range(min(shape.low, shape.prefix + 1))
            return any(self.empty(shape.item(at)) for at in first)
        if isinstance(shape, String) and shape.values is None and shape.conditions > 1:
            self._work += PROBE
            return unmatched(string_terminal(shape))
        return False

    # -- schemas that hold -----------------------------------------------------------------------

    def under(self, shapes: list[Shape], number: int) -> list[Shape]:
        """The shapes under a schema."""
        node = self.document.nodes[number]
        if isinstance(node.value, bool):
            return shapes if node.value else []
        self._enter(number, node)
        outer, entered = self.written, self._entered
        places = places_of(node.value)
        try:
            for keyword in self._order(node):
                if not shapes:
                    break
                self.written = (*outer, entered, places[keyword])
                shapes = self._apply(shapes, node, keyword)
                self.count(shapes, node, keyword)
        finally:
            self._inside.pop()
            self.written = outer
        return shapes

    def _enter(self, number: int, node: SchemaNode) -> None:
        if number in self._inside:
            raise Refusal(node.pointer, "refers to itself without end; remove the circle of $ref.")
        self._inside.append(number)
        self._entered += 1

    def _order(self, node: SchemaNode) -> list[str]:
        """A schema's keywords in order: first those that leave little, last those that multiply."""
        schema = node.value
        if self.document.old and "$ref" in schema:
            return ["$ref"]
        for keyword, value in schema.items():
            if (meant := slip(keyword)) is not None:
                raise Refusal(
                    f"{node.pointer}/{keyword}",
                    f"{keyword!r} is no keyword of JSON Schema; did you mean {meant!r}?",
                )
            if keyword in REFUSED and not (keyword == "minContains" and value in (0, 1)):
                raise Refusal(
                    f"{node.pointer}/{keyword}",
                    f"{keyword!r} cannot be enforced; {REFUSED[keyword]}.",
                )
            if keyword in ALONE and not EVALUATING.isdisjoint(schema):
                raise Refusal(
                    f"{node.pointer}/{keyword}",
                    f"{keyword!r} cannot be enforced beside $ref, allOf and their like; "
                    f"{ALONE[keyword]}.",
                )
        early = [keyword for keyword in FIRST if keyword in schema]
        late = [keyword for keyword in LAST if keyword in schema]
        rest = [keyword for keyword in schema if keyword not in FIRST and keyword not in LAST]
        return [*early, *rest, *late]

    def count(self, shapes: list[Shape], node: SchemaNode, keyword: str) -> None:
        self._work += len(shapes) + 1
        if self._work > MOST_WORK:
            raise Refusal(node.pointer, "the schema takes too much work to compile; simplify it.")
        if len(shapes) > MOST_SHAPES:
            raise Refusal(
                f"{node.pointer}/{keyword}",
                f"makes more than {MOST_SHAPES} alternatives; use fewer, or exclusive ones.",
            )

    def _apply(self, shapes: list[Shape], node: SchemaNode, keyword: str) -> list[Shape]:
        value, at = node.value[keyword], f"{node.pointer}/{keyword}"
        if keyword in SCALARS:
            self.used.add(at)
            return [s for shape in shapes if (s := narrowed(shape, node, keyword)) is not None]
        if keyword in CONTAINERS:
            self.used.add(at)
            return [s for shape in shapes for s in narrow_container(self, shape, node, keyword)]
        if keyword == "$ref":
            self.used.add(at)
            return self.under(shapes, self.document.resolve(node))
        applied = getattr(self, f"_{keyword}", None) if keyword in APPLIED else None
        if applied is None:
            return shapes
        self.used.add(at)
        found: list[Shape] = applied(shapes, node, value, at)
        return found

    def _type(self, shapes: list[Shape], node: SchemaNode, value: Any, at: str) -> list[Shape]:
        names = _types(value, at)
        return [s for shape in shapes for s in _typed(shape, names)]

    def _const(self, shapes: list[Shape], node: SchemaNode, value: Any, at: str) -> list[Shape]:
        return self._among(shapes, node, [value], at)

    def _enum(self, shapes: list[Shape], node: SchemaNode, value: Any, at: str) -> list[Shape]:
        if not isinstance(value, list):
            raise Refusal(at, "must be a list.")
        if len(value) > MOST_ENUM:
            raise Refusal(at, f"has {len(value)} values; at most {MOST_ENUM}.")
        return self._among(shapes, node, value, at)

    def _among(
        self, shapes: list[Shape], node: SchemaNode, values: list[Any], at: str
    ) -> list[Shape]:
        words = EnumValues.of(values)
        found: list[Shape] = []
        for shape in shapes:
            if isinstance(shape, Word) and shape.text in words.words:
                found.append(shape)
            elif isinstance(shape, Number):
                kept = tuple(text for text in words.numbers if fits_number(shape, text))
                found += [Number(values=kept)] if kept else []
            elif isinstance(shape, String):
                texts = tuple(text for text in words.strings if fits_string(shape, text))
                found += [String(values=texts)] if texts else []
            elif isinstance(shape, Array | Object):
                for i, inner in enumerate(words.inner(shape)):
                    kind = "array" if isinstance(shape, Array) else "object"
                    number = self.document.made(inner, f"{at}/{kind}/{i}")
                    found += self.under([shape], number)
        return found

    def _allOf(self, shapes: list[Shape], node: SchemaNode, value: Any, at: str) -> list[Shape]:
        for number in self._branches(node, value, at):
            shapes = self.under(shapes, number)
        return shapes

    def _anyOf(self, shapes: list[Shape], node: SchemaNode, value: Any, at: str) -> list[Shape]:
        return [s for number in self._branches(node, value, at) for s in self.under(shapes, number)]

    def _oneOf(self, shapes: list[Shape], node: SchemaNode, value: Any, at: str) -> list[Shape]:
        numbers = self._branches(node, value, at)
        each = [self.under(shapes, number) for number in numbers]
        found: list[Shape] = []
        for i, own in enumerate(each):
            for j, other in enumerate(numbers):
                if i == j or not own or apart(own, each[j]):
                    continue
                if self._any(self.under(own, other)):
                    own = self._told_apart(own, other, at, i, j)
            found += own
        return found

    def _told_apart(self, own: list[Shape], other: int, at: str, i: int, j: int) -> list[Shape]:
        try:
            return self.without(own, other)
        except Refusal as error:
            why = f"{error.pointer}: {error.reason.rstrip('.')}"
            raise Refusal(
                at,
                f"branches {i} and {j} may hold at once ({why}); "
                "make them exclusive, or use anyOf.",
            ) from None

    def _any(self, shapes: Iterable[Shape]) -> bool:
        return any(not self._hollow(shape) for shape in shapes)

    def _not(self, shapes: list[Shape], node: SchemaNode, value: Any, at: str) -> list[Shape]:
        return self.without(shapes, self.document.child(node, value, "not"))

    def _if(self, shapes: list[Shape], node: SchemaNode, value: Any, at: str) -> list[Shape]:
        schema = node.value
        if "then" not in schema and "else" not in schema:
            return shapes
        test = self.document.child(node, value, "if")
        found = self.under(shapes, test)
        if "then" in schema:
            self.used.add(f"{node.pointer}/then")
            found = self.under(found, self.document.child(node, schema["then"], "then"))
        other = self.without(shapes, test)
        if "else" in schema:
            self.used.add(f"{node.pointer}/else")
            other = self.under(other, self.document.child(node, schema["else"], "else"))
        return found + other

    def _branches(self, node: SchemaNode, value: Any, at: str) -> list[int]:
        if not isinstance(value, list) or not value:
            raise Refusal(at, "must be a list of schemas, not empty.")
        keyword = at.rsplit("/", 1)[1]
        return [self.document.child(node, one, keyword, i) for i, one in enumerate(value)]

    # -- schemas that fail -----------------------------------------------------------------------

    def without(self, shapes: list[Shape], number: int) -> list[Shape]:
        """The shapes that do not satisfy a schema: in one keyword at least."""
        node = self.document.nodes[number]
        if isinstance(node.value, bool):
            return [] if node.value else shapes
        self._enter(number, node)
        try:
            found: list[Shape] = []
            for keyword in self._order(node):
                found += self._fail(shapes, node, keyword)
                self.count(found, node, keyword)
        finally:
            self._inside.pop()
        return found

    def _fail(self, shapes: list[Shape], node: SchemaNode, keyword: str) -> list[Shape]:
        value, at = node.value[keyword], f"{node.pointer}/{keyword}"
        if keyword in SCALARS:
            self.used.add(at)
            return [s for shape in shapes for s in failing(shape, node, keyword)]
        if keyword in CONTAINERS:
            self.used.add(at)
            return [s for shape in shapes for s in fail_container(self, shape, node, keyword)]
        if keyword == "type":
            names = [name for name in TYPES if name not in _types(value, at)]
            return [s for shape in shapes for s in _untyped(shape, _types(value, at), names)]
        if keyword in ("const", "enum"):
            return self._not_among(shapes, [value] if keyword == "const" else value, at)
        if keyword == "$ref":
            return self.without(shapes, self.document.resolve(node))
        if keyword == "not":
            return self.under(shapes, self.document.child(node, value, "not"))
        if keyword == "anyOf":
            for number in self._branches(node, value, at):
                shapes = self.without(shapes, number)
            return shapes
        if keyword == "allOf":
            numbers = self._branches(node, value, at)
            return [s for number in numbers for s in self.without(shapes, number)]
        if keyword == "oneOf":
            return self._not_one(shapes, self._branches(node, value, at))
        if keyword == "if":
            return self._not_if(shapes, node, value)
        return []

    def _not_one(self, shapes: list[Shape], numbers: list[int]) -> list[Shape]:
        """None of the branches, or two of them."""
        found = shapes
        for number in numbers:
            found = self.without(found, number)
        for i, one in enumerate(numbers):
            under = self.under(shapes, one)
            for other in numbers[i + 1 :]:
                found = found + self.under(under, other)
        return found

    def _not_if(self, shapes: list[Shape], node: SchemaNode, value: Any) -> list[Shape]:
        test = self.document.child(node, value, "if")
        found: list[Shape] = []
        if "then" in node.value:
            then = self.document.child(node, node.value["then"], "then")
            found += self.without(self.under(shapes, test), then)
        if "else" in node.value:
            other = self.document.child(node, node.value["else"], "else")
            found += self.without(self.without(shapes, test), other)
        return found

    def _not_among(self, shapes: list[Shape], values: Any, at: str) -> list[Shape]:
        words = EnumValues.of(values if isinstance(values, list) else [])
        return [s for shape in shapes for s in words.others(shape, at)]


APPLIED = frozenset({"type", "const", "enum", "allOf", "anyOf", "oneOf", "not", "if"})


def _types(value: Any, at: str) -> list[str]:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name not in TYPES:
            raise Refusal(at, f"{name!r} is not a type; use {', '.join(TYPES)}.")
    return names


def _typed(shape: Shape, names: list[str]) -> Iterable[Shape]:
    if isinstance(shape, Word):
        wanted = "null" if shape.text == "null" else "boolean"
        return [shape] if wanted in names else []
    if isinstance(shape, Number):
        if "number" in names:
            return [shape]
        if "integer" not in names:
            return []
        found = settled(
            Number(True, shape.fraction, shape.low, shape.high, shape.multiple, shape.values)
        )
        return [] if found is None else [found]
    name = {String: "string", Array: "array", Object: "object"}[type(shape)]
    return [shape] if name in names else []


def _untyped(shape: Shape, names: list[str], others: list[str]) -> Iterable[Shape]:
    if isinstance(shape, Number) and "integer" in names and "number" not in names:
        found = settled(
            Number(shape.integer, True, shape.low, shape.high, shape.multiple, shape.values)
        )
        return [] if found is None else [found]
    if isinstance(shape, Number) and "number" in names:
        return []
    return _typed(shape, others)


__all__ = ["ANY", "Normalizer"]
