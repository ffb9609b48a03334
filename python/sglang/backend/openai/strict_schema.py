"""JSON schemas as OpenAI's structured output takes them: strict, and with an object at the root."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WRAPPED = "value"
OPENING = re.compile(r'\s*\{\s*"' + WRAPPED + r'"\s*:\s*')
# Maps from a name to a schema, plain data, and what the strict subset does not have.
NAMED = frozenset({"properties", "$defs", "definitions"})
DATA = frozenset({"enum", "const", "required", "type"})
SAID = frozenset({"title", "description"})  # allowed beside a reference
BEYOND = frozenset({"oneOf", "allOf", "not", "if", "patternProperties", "prefixItems"})


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``{"name", "schema", "strict"}`` for a schema; what is no object is wrapped in one.

    A strict schema names every property as required and allows no other. Making it so only narrows
    what satisfies it, so it is done where it can be; else the service does without ``strict``.
    """
    whole = dict(schema) if is_object(schema) else _wrapped(schema)
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(schema.get("title") or "output"))[:64]
    try:
        return {"name": name, "schema": _Strict(whole).of(whole), "strict": True}
    except _Beyond:
        return {"name": name, "schema": whole, "strict": False}


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether the service holds its model to this schema."""
    return bool(response_format(schema)["strict"])


def is_object(schema: Mapping[str, Any]) -> bool:
    """Whether a root of this schema is taken as it is."""
    return schema.get("type") == "object" and "anyOf" not in schema


def unwrapped(text: str) -> str:
    """The wrapped value's own text; of a text that is still growing, as much as is certain."""
    opening = OPENING.match(text)
    if opening is None:
        return ""
    return text[opening.end() :].rstrip().removesuffix("}").rstrip()


def _wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Definitions stay at the root, where references look for them."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    whole = {
        "type": "object",
        "properties": {WRAPPED: inner},
        "required": [WRAPPED],
        "additionalProperties": False,
    }
    return {**whole, "$defs": schema["$defs"]} if "$defs" in schema else whole


class _Beyond(Exception):
    """The schema has something that the strict subset has not."""


class _Strict:
    """Nodes of a schema whose definitions are those of ``root``. ``inlining``: references that the
    node is in the place of.
    """

    def __init__(self, root: Mapping[str, Any], inlining: tuple[str, ...] = ()) -> None:
        self.root, self.inlining = root, inlining

    def of(self, node: Any) -> Any:
        """Return a schema, or a part of one, in the strict subset. Raises _Beyond where it has
        none."""
        if isinstance(node, list):
            return [self.of(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        node = {key: value for key, value in node.items() if key != "default"}
        if BEYOND & node.keys():
            raise _Beyond
        if "$ref" in node and len(node) > 1:
            return self._merged(node)
        out: dict[str, Any] = {}
        for key, value in node.items():
            if key in NAMED:
                out[key] = {name: self.of(inner) for name, inner in value.items()}
            else:
                out[key] = value if key in DATA else self.of(value)
        if out.get("type") == "object":
            if (
                "properties" not in out
                or out.setdefault("additionalProperties", False) is not False
            ):
                raise _Beyond
            out["required"] = list(out["properties"])
        return out

    def _merged(self, node: dict[str, Any]) -> Any:
        """A reference has no other keys in the strict subset: they are moved into its
        definition."""
        reference = node.pop("$ref")
        found: Any = self.root
        for name in reference.removeprefix("#/").split("/"):
            found = found.get(name) if isinstance(found, Mapping) else None
        contradicted = found is None or (found.keys() - SAID) & node.keys()
        if contradicted or reference in self.inlining:
            raise _Beyond
        return _Strict(self.root, (*self.inlining, reference)).of({**found, **node})
