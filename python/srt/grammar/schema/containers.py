"""Keywords of arrays and objects: how each narrows a shape, and what a value that fails it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from sglang.srt.grammar.schema.scalars import carried, size
from sglang.srt.grammar.schema.schema_document import Document, Refusal, SchemaNode
from sglang.srt.grammar.schema.schema_keywords import OF_ARRAYS, OF_OBJECTS, SCOPE
from sglang.srt.grammar.schema.value_shapes import (
    ANY,
    Array,
    Object,
    Other,
    Scope,
    Shape,
    State,
    Written,
)

ITEMS = ("prefixItems", "items", "unevaluatedItems")


class AppliedSchemas(Protocol):
    """The schemas being applied to one value (``normal_form.Normalizer``)."""

    document: Document

    @property
    def written(self) -> Written:
        """Position of the keyword being applied."""
        ...

    def under(self, shapes: list[Shape], number: int) -> list[Shape]:
        """The shapes whose values satisfy a schema too."""
        ...

    def count(self, shapes: list[Shape], node: SchemaNode, keyword: str) -> None:
        """Raise Refusal where shapes or work exceed their limits."""
        ...


def narrow_container(
    schemas: AppliedSchemas, shape: Shape, node: SchemaNode, keyword: str
) -> Iterator[Shape]:
    """The shapes in which the keyword holds too."""
    if isinstance(shape, Array) and keyword in OF_ARRAYS:
        yield from _narrow_array(schemas, shape, node, keyword)
    elif isinstance(shape, Object) and keyword in OF_OBJECTS:
        yield from _narrow_object(schemas, shape, node, keyword)
    else:
        yield shape


def fail_container(
    schemas: AppliedSchemas, shape: Shape, node: SchemaNode, keyword: str
) -> Iterator[Shape]:
    """The shapes that values of ``shape`` have for which the keyword does not hold."""
    if isinstance(shape, Array) and keyword in OF_ARRAYS:
        yield from _fail_array(schemas, shape, node, keyword)
    elif isinstance(shape, Object) and keyword in OF_OBJECTS:
        yield from _fail_object(schemas, shape, node, keyword)


# -- arrays --------------------------------------------------------------------------------------


def _items(schemas: AppliedSchemas, node: SchemaNode) -> tuple[tuple[State, ...], State]:
    """The states of the first items, and that of the others."""
    schema, child = node.value, schemas.document.child
    first, word = schema.get("prefixItems"), "prefixItems"
    rest = "items"
    if isinstance(schema.get("items"), list):  # before draft 2020-12
        first, word, rest = schema["items"], "items", "additionalItems"
    if first is not None and not isinstance(first, list):
        raise Refusal(f"{node.pointer}/{word}", "must be a list of schemas.")
    prefix = tuple(frozenset({child(node, s, word, i)}) for i, s in enumerate(first or ()))
    if rest not in schema:
        rest = "unevaluatedItems"
    others = frozenset({child(node, schema[rest], rest)}) if rest in schema else ANY
    return prefix, others


def _narrow_array(
    schemas: AppliedSchemas, shape: Array, node: SchemaNode, keyword: str
) -> Iterator[Shape]:
    schema = node.value
    if keyword == "minItems":
        shape = replace(shape, low=max(shape.low, size(node, keyword)))
    elif keyword == "maxItems":
        shape = _at_most(shape, size(node, keyword))
    elif keyword == "uniqueItems":
        if schema[keyword] is True:
            shape = replace(shape, unique=f"{node.pointer}/{keyword}")
    elif keyword == "contains":
        if schema.get("minContains", 1) != 0:
            state = frozenset({schemas.document.child(node, schema[keyword], keyword)})
            entry = (state, f"{node.pointer}/{keyword}")
            shape = replace(shape, contains=shape.contains | {entry})
    elif keyword == _first(schema, ITEMS):
        shape = replace(shape, parts=(*shape.parts, _items(schemas, node)))
        shape = _without_false(schemas, shape)
    if shape.high is None or shape.low <= shape.high:
        yield shape


def _at_most(shape: Array, most: int) -> Array:
    return replace(shape, high=most if shape.high is None else min(shape.high, most))


def _without_false(schemas: AppliedSchemas, shape: Array) -> Array:
    """The array cut before the first item that is ``false``."""
    for at in range(shape.prefix + 1):
        if any(schemas.document.nodes[n].value is False for n in shape.item(at) if n >= 0):
            return _at_most(shape, at)
    return shape


def _fail_array(
    schemas: AppliedSchemas, shape: Array, node: SchemaNode, keyword: str
) -> Iterator[Shape]:
    at = f"{node.pointer}/{keyword}"
    if keyword == "minItems":
        most = size(node, keyword) - 1
        if most >= shape.low:
            yield _at_most(shape, most)
    elif keyword == "maxItems":
        least = size(node, keyword) + 1
        if shape.high is None or least <= shape.high:
            yield replace(shape, low=max(shape.low, least))
    elif keyword == "contains":
        if node.value.get("minContains", 1) != 0:
            state = frozenset({~schemas.document.child(node, node.value[keyword], keyword)})
            yield replace(shape, parts=(*shape.parts, ((), state)))
    elif keyword == "uniqueItems":
        if node.value[keyword] is True:
            raise Refusal(at, f"{keyword!r} cannot be enforced inside not; write it without.")
    elif keyword == _first(node.value, ITEMS):
        yield from _fail_items(schemas, shape, node, at)


def _fail_items(
    schemas: AppliedSchemas, shape: Array, node: SchemaNode, at: str
) -> Iterator[Shape]:
    """One item fails its schema."""
    prefix, rest = _items(schemas, node)
    for i, state in enumerate(prefix):
        if shape.high is None or i < shape.high:
            failed = tuple([ANY] * i + [_denied(state)])
            found = replace(shape, parts=(*shape.parts, (failed, ANY)), low=max(shape.low, i + 1))
            yield found
    if rest:
        if prefix:
            raise Refusal(at, "items after a prefix cannot be enforced inside not.")
        entry = (_denied(rest), at)
        yield replace(shape, contains=shape.contains | {entry})


def _denied(state: State) -> State:
    (number,) = state
    return frozenset({~number})


# -- objects -------------------------------------------------------------------------------------


def _first(schema: dict[str, Any], keywords: tuple[str, ...]) -> str | None:
    return next((keyword for keyword in schema if keyword in keywords), None)


def _scope(schemas: AppliedSchemas, node: SchemaNode) -> Scope:
    schema, child = node.value, schemas.document.child
    for keyword in ("properties", "patternProperties"):
        if not isinstance(schema.get(keyword, {}), dict):
            raise Refusal(f"{node.pointer}/{keyword}", "must be an object of schemas.")
    properties = {
        name: frozenset({child(node, value, "properties", name)})
        for name, value in schema.get("properties", {}).items()
    }
    patterns = []
    for source, value in schema.get("patternProperties", {}).items():
        number = child(node, value, "patternProperties", source)
        pattern = carried(source, schemas.document.nodes[number].pointer)
        patterns.append((pattern, frozenset({number})))
    word = next((word for word in SCOPE[2:] if word in schema), "")
    rest = frozenset({child(node, schema[word], word)}) if word else ANY
    return Scope(properties, tuple(patterns), rest)


def _names(node: SchemaNode, value: Any, *path: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        at = "/".join([node.pointer, *path])
        raise Refusal(at, "must be a list of names.")
    return value


def _need(schemas: AppliedSchemas, shape: Object, names: list[str]) -> Object:
    shape = shape.mentioning(names, schemas.written, required=True)
    return replace(shape, required=shape.required | set(names))


def _forbid(schemas: AppliedSchemas, shape: Object, name: str) -> Object | None:
    if name in shape.required:
        return None
    never = frozenset({schemas.document.never})
    shape = shape.mentioning([name], schemas.written, required=True)
    return replace(shape, scopes=(*shape.scopes, Scope({name: never})))


def _narrow_object(
    schemas: AppliedSchemas, shape: Object, node: SchemaNode, keyword: str
) -> Iterator[Shape]:
    schema, at = node.value, f"{node.pointer}/{keyword}"
    if keyword in SCOPE:
        if keyword == _first(schema, SCOPE):
            scope = _scope(schemas, node)
            shape = shape.mentioning(scope.properties, schemas.written, required=False)
            shape = replace(shape, scopes=(*shape.scopes, scope))
    elif keyword == "required":
        if isinstance(schema[keyword], bool):
            raise Refusal(at, "a bool is of draft 3; list the names beside properties.")
        shape = _need(schemas, shape, _names(node, schema[keyword], keyword))
    elif keyword == "minProperties":
        shape = replace(shape, low=max(shape.low, size(node, keyword)), counted=at)
    elif keyword == "maxProperties":
        shape = replace(_few(shape, size(node, keyword)), counted=at)
    elif keyword == "propertyNames":
        number = schemas.document.child(node, schema[keyword], keyword)
        shape = replace(shape, names=shape.names | {number})
    else:
        yield from _dependent(schemas, shape, node, keyword)
        return
    if shape.high is None or max(shape.low, len(shape.required)) <= shape.high:
        yield shape


def _few(shape: Object, most: int) -> Object:
    return replace(shape, high=most if shape.high is None else min(shape.high, most))


def _dependent(
    schemas: AppliedSchemas, shape: Object, node: SchemaNode, keyword: str
) -> Iterator[Shape]:
    """Shapes in which each name is missing, or its dependents hold."""
    found: list[Shape] = [shape]
    rules = node.value[keyword]
    if not isinstance(rules, dict):
        raise Refusal(f"{node.pointer}/{keyword}", "must be an object.")
    for name, rule in rules.items():
        each: list[Shape] = []
        for one in found:
            assert isinstance(one, Object)
            missing = _forbid(schemas, one, name)
            each += [missing] if missing is not None else []
            there = _need(schemas, one, [name])
            if isinstance(rule, list):
                each.append(_need(schemas, there, _names(node, rule, keyword, name)))
            else:
                each += schemas.under([there], schemas.document.child(node, rule, keyword, name))
        found = each
        schemas.count(found, node, keyword)
    yield from found


def _fail_object(
    schemas: AppliedSchemas, shape: Object, node: SchemaNode, keyword: str
) -> Iterator[Shape]:
    schema, at = node.value, f"{node.pointer}/{keyword}"
    if keyword in SCOPE:
        if keyword == _first(schema, SCOPE):
            yield from _fail_scope(schemas, shape, node)
    elif keyword == "required":
        for name in _names(node, schema[keyword], keyword):
            found = _forbid(schemas, shape, name)
            if found is not None:
                yield found
    elif keyword == "minProperties":
        most = size(node, keyword) - 1
        if most >= max(shape.low, len(shape.required)):
            yield replace(_few(shape, most), counted=at)
    elif keyword == "maxProperties":
        least = size(node, keyword) + 1
        if shape.high is None or least <= shape.high:
            yield replace(shape, low=max(shape.low, least), counted=at)
    else:
        raise Refusal(at, f"{keyword!r} cannot be enforced inside not; write it without.")


def _fail_scope(schemas: AppliedSchemas, shape: Object, node: SchemaNode) -> Iterator[Shape]:
    """One property fails its schema, or one is there that may not be."""
    scope = _scope(schemas, node)
    for name, state in scope.properties.items():
        denied = _denied(state)
        schema = schemas.document.nodes[~min(denied)].value
        if schema is True or schema == {}:
            continue
        found = _need(schemas, shape, [name])
        yield replace(found, scopes=(*found.scopes, Scope({name: denied})))
    if not scope.patterns and not scope.additional:
        return
    rest = [schemas.document.nodes[n].value for n in scope.additional]
    if not scope.patterns and rest and rest[0] in (True, {}):
        return
    for name in shape.order:
        for number in scope.named(name) - scope.properties.get(name, ANY):
            found = _need(schemas, shape, [name])
            yield replace(found, scopes=(*found.scopes, Scope({name: frozenset({~number})})))
    word = "patternProperties" if scope.patterns else "additionalProperties"
    others = [Other(_denied(state), inside=frozenset({p})) for p, state in scope.patterns]
    if scope.additional:
        outside = frozenset(pattern for pattern, _ in scope.patterns)
        others.append(
            Other(_denied(scope.additional), frozenset(scope.properties), outside=outside)
        )
    for other in others:
        if shape.some:
            raise Refusal(f"{node.pointer}/{word}", f"{word!r} cannot be negated twice.")
        yield replace(shape, some=(other,))
