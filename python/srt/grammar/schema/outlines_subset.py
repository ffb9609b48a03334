"""The subset of JSON Schema that outlines-core enforces: few keywords, in few combinations."""

from __future__ import annotations

import json
from typing import Any

from sglang.srt.grammar.schema.scalars import carried
from sglang.srt.grammar.schema.schema_document import DEPTH, Document, Refusal, pointer
from sglang.srt.grammar.schema.schema_keywords import kind
from sglang.srt.grammar.schema.string_formats import format_pattern

BARE = frozenset({"boolean", "integer", "null", "number"})
BESIDE = {
    "array": ("items", "maxItems", "minItems"),
    "object": ("additionalProperties", "properties", "required"),
    "string": ("format", "maxLength", "minLength", "pattern"),
}
FIX = "is not enforced by outlines-core here; use --grammar-backend auto."


def plain(schema: Any, prefix: str = "") -> dict[str, Any]:
    """The same values, or fewer: objects have no properties but those listed.

    Raises Refusal for a keyword that outlines-core does not enforce where it stands.
    """
    document = Document(schema, prefix)
    return _Plain(document, schema).of(schema, prefix, 0)


class _Plain:
    """References are followed once each, so that a schema may refer to itself."""

    def __init__(self, document: Document, root: Any) -> None:
        self._document = document
        self._root = root

    def of(self, schema: Any, at: str, depth: int) -> dict[str, Any]:
        if depth > DEPTH:
            raise Refusal(at, "refers to itself, which outlines-core does not enforce.")
        if isinstance(schema, bool):
            if not schema:
                raise Refusal(at, "allows no value at all.")
            raise Refusal(at, f"a schema that allows everything {FIX}")
        words = {k: v for k, v in schema.items() if kind(k) in ("enforced", "refused")}
        for first in ("$ref", "enum", "const", "anyOf"):
            if first in words:
                return self._alone(schema, words, first, at, depth)
        name = words.pop("type", None)
        if isinstance(name, str) and name in BESIDE:
            self._only(words, BESIDE[name], at)
            made: dict[str, Any] = getattr(self, f"_{name}")(words, at, depth)
            return {"type": name, **made}
        self._only(words, (), at)
        if name is None:
            raise Refusal(at, f"a schema that allows everything {FIX}")
        names = name if isinstance(name, list) else [name]
        for one in names:
            if one not in BARE and not (one == "string" and isinstance(name, list)):
                raise Refusal(f"{at}/type", f"{one!r} {FIX}")
        return {"type": name}

    @staticmethod
    def _only(words: dict[str, Any], known: tuple[str, ...], at: str) -> None:
        for keyword in words:
            if keyword not in known:
                raise Refusal(f"{at}/{keyword}", f"{keyword!r} {FIX}")

    def _alone(
        self, schema: dict[str, Any], words: dict[str, Any], first: str, at: str, depth: int
    ) -> dict[str, Any]:
        value = words.pop(first)
        if first in ("enum", "const"):
            values = value if first == "enum" else [value]
            if words.get("type") == "string" and all(isinstance(v, str) for v in values):
                del words["type"]
        self._only(words, (), at)
        if first == "$ref":
            document = self._document
            number = document.node(schema, at, "")
            node = document.nodes[document.resolve(document.nodes[number])]
            return self.of(node.value, node.pointer, depth + 1)
        if first == "anyOf":
            if not isinstance(value, list) or not value:
                raise Refusal(f"{at}/anyOf", "must be a list of schemas, not empty.")
            parts = [self.of(v, at + pointer(first, i), depth + 1) for i, v in enumerate(value)]
            return {"anyOf": parts}
        if not isinstance(values, list) or not values:
            raise Refusal(f"{at}/{first}", "must be a list, not empty.")
        if any(isinstance(v, dict | list) for v in values):
            raise Refusal(f"{at}/{first}", f"an array or object {FIX}")
        return {"enum": values}

    def _string(self, words: dict[str, Any], at: str, depth: int) -> dict[str, Any]:
        sized = not words.keys().isdisjoint(("minLength", "maxLength"))
        if ("pattern" in words) + ("format" in words) + sized > 1:
            keyword = "format" if "format" in words else "pattern"
            raise Refusal(f"{at}/{keyword}", f"{keyword!r} beside another condition {FIX}")
        found = None
        if "pattern" in words:
            found = carried(words["pattern"], f"{at}/pattern")
        elif "format" in words:
            found = format_pattern(str(words["format"]))
            if found is None:
                raise Refusal(f"{at}/format", f"{words['format']!r} {FIX}")
        if found is None:
            return words
        if not found.expression.startswith('/"'):
            raise Refusal(f"{at}/pattern", f"an assertion in the middle {FIX}")
        return {"pattern": found.expression[2:-2]}

    def _array(self, words: dict[str, Any], at: str, depth: int) -> dict[str, Any]:
        if isinstance(words.get("items"), list):
            raise Refusal(f"{at}/items", f"a list {FIX}")
        if "items" not in words:
            raise Refusal(at, f"an array without items {FIX}")
        words["items"] = self.of(words["items"], f"{at}/items", depth + 1)
        return words

    def _object(self, words: dict[str, Any], at: str, depth: int) -> dict[str, Any]:
        others = words.pop("additionalProperties", True)
        if not isinstance(others, bool):
            raise Refusal(f"{at}/additionalProperties", f"a schema {FIX}")
        properties = words.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise Refusal(at, f"an object without listed properties {FIX}")
        for name in properties:
            if json.dumps(name, ensure_ascii=False) != f'"{name}"':
                raise Refusal(f"{at}/properties", f"{name!r} needs escapes, which {FIX}")
        for name in words.get("required", ()):
            if name not in properties:
                raise Refusal(f"{at}/required", f"{name!r} is not in properties, which {FIX}")
        words["properties"] = {
            name: self.of(value, at + pointer("properties", name), depth + 1)
            for name, value in properties.items()
        }
        return words
