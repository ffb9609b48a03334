"""Constraints of the OpenAI routes: ``response_format`` and the fields beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sglang.srt.requests.completion.constraint_settings import NAMES
from sglang.srt.requests.request_error import RequestError

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
# vLLM's names of constraints: as fields of the body, and in ``structured_outputs``.
_GUIDED = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "ebnf",
    "grammar": "ebnf",  # llama.cpp's server's
    "guided_whitespace_pattern": "whitespace_pattern",
}
_STRUCTURED = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "ebnf",
    "structural_tag": "structural_tag",
    "whitespace_pattern": "whitespace_pattern",
}
_ANY_OBJECT = {"type": "object"}


class ConstraintFields(msgspec.Struct, kw_only=True):
    """Fields of a body that constrain the generated text; at most one constraint may be given."""

    response_format: dict[str, Any] | None = None
    regex: Any = None
    json_schema: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    choices: Any = None
    whitespace_pattern: Any = None
    choices_scoring: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None
    guided_whitespace_pattern: Any = None
    structured_outputs: dict[str, Any] | None = None


def settings_of(body: ConstraintFields) -> dict[str, Any]:
    """Return the constraint as entries of ``sampling_params``. Raises RequestError if two fields
    give the same kind of constraint."""
    found: dict[str, tuple[str, Any]] = {}

    def put(kind: str, field: str, value: Any) -> None:
        if value is None:
            return
        if kind in found:
            other = found[kind][0]
            raise RequestError(f"{other} and {field} exclude one another; give one.", field)
        found[kind] = field, value

    for name in NAMES:
        put(name, name, getattr(body, name))
    for name, kind in _GUIDED.items():
        put(kind, name, getattr(body, name))
    for name, value in (body.structured_outputs or {}).items():
        if name == "json_object":
            put("json_schema", "structured_outputs", _ANY_OBJECT if value else None)
        elif name in _STRUCTURED:
            put(_STRUCTURED[name], "structured_outputs", value)
        elif value:
            raise RequestError(
                f"structured_outputs has {name!r}; use one of {', '.join(_STRUCTURED)}.",
                "structured_outputs",
            )
    if body.response_format is not None:
        kind, value = _format(body.response_format)
        put(kind, "response_format", value)
    return {kind: value for kind, (_, value) in found.items()}


def _format(given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return kind and value of a ``response_format``; the value is None for plain text. Raises
    RequestError."""
    kind = given.get("type")
    if kind == "text":
        return "regex", None
    if kind == "json_object":  # with a schema, as llama.cpp's server takes it
        return "json_schema", given.get("schema", _ANY_OBJECT)
    if kind == "structural_tag":
        return kind, dict(given)
    if kind != "json_schema":
        raise RequestError(
            f"response_format.type is {kind!r:.60}; use one of {', '.join(FORMATS)}.",
            "response_format",
        )
    inner = given.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, (dict, bool)):
        raise RequestError(
            "response_format.json_schema.schema is missing; give a JSON schema.", "response_format"
        )
    return "json_schema", schema
