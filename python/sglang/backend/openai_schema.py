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
BEYOND = frozenset({"oneOf", "allOf", "not", "if", "patternProperties", "prefixItems"})


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``{"name", "schema", "strict"}`` for a schema; what is no object is wrapped in one.

    A strict schema names every property as required and allows no other. Making it so only narrows
    what satisfies it, so it is done where it can be; else the service does without ``strict``.
    """
    whole = dict(schema) if is_object(schema) else _wrapped(schema)
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(schema.get("title") or "output"))[:64]
    try:
        return {"name": name, "schema": _strict(whole), "strict": True}
    except _Beyond:
        return {"name": name, "schema": whole, "strict": False}


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


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    if BEYOND & node.keys():
        raise _Beyond
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in NAMED:
            out[key] = {name: _strict(inner) for name, inner in value.items()}
        elif key in DATA:
            out[key] = value
        elif key != "default":
            out[key] = _strict(value)
    if out.get("type") == "object":
        if "properties" not in out or out.setdefault("additionalProperties", False) is not False:
            raise _Beyond
        out["required"] = list(out["properties"])
    return out
