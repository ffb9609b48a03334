"""Document: a schema with its references resolved, and its subschemas by JSON pointer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from sglang.srt.grammar.grammar_protocol import GrammarError

DEPTH = 64
OLD = re.compile(r"https?://json-schema\.org/draft-0[3467]/schema#?")

ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "not",
       "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties",
         "properties")  # fmt: skip


@dataclass(frozen=True, eq=False)
class SchemaNode:
    """A schema at its JSON pointer.

    Attributes:
        value: a dict or a bool.
        pointer: JSON pointer from the root of the document.
        base: the URI that references in it are relative to.
    """

    value: Any
    pointer: str
    base: str


class Refusal(GrammarError):
    """A schema that cannot be enforced."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"json_schema at {pointer or '/'}: {reason}")
        self.pointer = pointer
        self.reason = reason


class Document:
    """Nodes are numbered, and made once a pointer.

    Args:
        schema: parsed JSON.
        prefix: pointer to the schema in what the user wrote.

    Raises Refusal where the schema is not one, or is nested deeper than DEPTH.
    """

    def __init__(self, schema: Any, prefix: str = "") -> None:
        dialect = schema.get("$schema") if isinstance(schema, dict) else None
        # In drafts before 2019-09 what stands beside a $ref is ignored.
        self.old = isinstance(dialect, str) and OLD.fullmatch(dialect) is not None
        self.nodes: list[SchemaNode] = []
        self._ids: dict[str, int] = {}
        self._bases: dict[str, str] = {}
        self._resources: dict[str, tuple[Any, str]] = {"": (schema, prefix)}
        self._anchors: dict[str, tuple[Any, str]] = {}
        self._scan(schema, prefix, "", 0)
        self.root = self.node(schema, prefix, self._bases.get(prefix, ""))

    def node(self, value: Any, pointer: str, base: str) -> int:
        """The number of a schema. Raises Refusal where the value is not one."""
        found = self._ids.get(pointer)
        if found is None:
            if not isinstance(value, dict | bool):
                raise Refusal(pointer, "a schema must be an object or true or false.")
            found = self._ids[pointer] = len(self.nodes)
            self.nodes.append(SchemaNode(value, pointer, self._bases.get(pointer, base)))
        return found

    def child(self, node: SchemaNode, value: Any, *path: str | int) -> int:
        """The number of a schema inside ``node``."""
        return self.node(value, node.pointer + pointer(*path), node.base)

    def made(self, value: Any, pointer: str) -> int:
        """The number of a schema of our own, in place of what stands at ``pointer``."""
        return self.node(value, f"{pointer}#", "")

    @property
    def never(self) -> int:
        """The number of ``false``."""
        return self.node(False, "#false", "")

    def resolve(self, node: SchemaNode) -> int:
        """The number of what ``$ref`` in ``node`` names. Raises Refusal."""
        ref = node.value["$ref"]
        at = f"{node.pointer}/$ref"
        if not isinstance(ref, str):
            raise Refusal(at, f"must be a string, not {ref!r}.")
        whole = urldefrag(node.base)[0] + ref if ref.startswith("#") else urljoin(node.base, ref)
        uri, fragment = urldefrag(whole)
        resource = self._resources.get(uri)
        if resource is None:
            raise Refusal(
                at, f"{ref!r} is another document; copy what it names into $defs of this one."
            )
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"{uri}#{fragment}")
            if found is None:
                raise Refusal(at, f"{ref!r} names nothing in the schema; add the $anchor.")
            return self.node(found[0], found[1], uri)
        return self._walk(*resource, uri, unquote(fragment), at, ref)

    def _walk(self, value: Any, where: str, base: str, fragment: str, at: str, ref: str) -> int:
        for part in fragment.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(name)] if isinstance(value, list) else value[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise Refusal(at, f"{ref!r} names nothing in the schema; correct it.") from None
            where += pointer(name)
            base = self._bases.get(where, base)
        return self.node(value, where, base)

    def _scan(self, value: Any, where: str, base: str, depth: int) -> None:
        """Note identifiers and anchors."""
        if depth > DEPTH:
            raise Refusal(where, f"nested deeper than {DEPTH} schemas; move parts to $defs.")
        if not isinstance(value, dict):
            return
        name = value.get("$id", value.get("id"))
        if isinstance(name, str) and not (self.old and "$ref" in value):
            uri, fragment = urldefrag(urljoin(base, name))
            if fragment and not name.partition("#")[0]:
                self._anchors[f"{urldefrag(base)[0]}#{fragment}"] = (value, where)
            else:
                base = uri
                self._resources.setdefault(uri, (value, where))
        self._bases[where] = base
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(value.get(keyword), str):
                self._anchors[f"{base}#{value[keyword]}"] = (value, where)
        for part, path in subschemas(value):
            self._scan(part, where + path, base, depth + 1)


def subschemas(value: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """The schemas directly inside one, each with its pointer from there."""
    for keyword, inner in value.items():
        if keyword in ONE:
            yield inner, pointer(keyword)
        elif keyword == "items":
            parts = inner if isinstance(inner, list) else None
            if parts is None:
                yield inner, pointer(keyword)
            else:
                yield from ((part, pointer(keyword, i)) for i, part in enumerate(parts))
        elif keyword in MANY and isinstance(inner, list):
            yield from ((part, pointer(keyword, i)) for i, part in enumerate(inner))
        elif keyword in NAMED and isinstance(inner, dict):
            yield from ((part, pointer(keyword, name)) for name, part in inner.items())


def pointer(*path: str | int) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
