"""Limits: limits of body fields that the types do not express, for /openapi.json.

Bounds and descriptions come from the fields' declarations (``ir/declaration``), which are enforced
when a body is read. The handlers enforce the shapes of this module. Tests of the document verify
that the handlers refuse everything that these schemas refuse.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sglang.ir.declaration import Bounds, Parameter
from sglang.ir.sampling import PARAMETERS
from sglang.srt.requests.common_fields import declarations
from sglang.srt.requests.completion.completion_request import RENAMED, WITHOUT_EFFECT
from sglang.srt.requests.completion.constraint_settings import NAMES, SCORINGS
from sglang.srt.runtime.conversations.chat_request import EFFORTS
from sglang.srt.runtime.conversations.conversation import ROLES

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}
STRING: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
ANY_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
IDS: Schema = {**ANY_IDS, "minItems": 1}


def or_null(*kinds: Schema) -> Schema:
    return {"anyOf": [*kinds, _NULL], "default": None}


def list_of(kind: Schema) -> Schema:
    return {"type": "array", "items": kind, "minItems": 1}


SOME: Schema = {"type": "string", "minLength": 1}
_DOCUMENT: Schema = {"type": "object", "properties": {"text": SOME}, "required": ["text"]}
_PARTS: Schema = {
    "type": "array",
    "items": {"anyOf": [STRING, {"type": "array", "items": STRING}]},
}
_PART: Schema = {"anyOf": [SOME, {"type": "array", "items": STRING, "contains": SOME}]}
_PROMPTS: Schema = {"anyOf": [SOME, IDS, list_of(SOME), list_of(IDS)]}
_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": {"anyOf": [STRING, {"type": "array", "items": _OBJECT}, _NULL]},
    },
    "required": ["role"],
}
_PATTERN, _JSON_SCHEMA = or_null(STRING), or_null(_OBJECT, {"type": "boolean"}, STRING)
_CHOICES = or_null(list_of(STRING))

CONSTRAINTS: dict[str, Schema] = {
    "regex": _PATTERN,
    "guided_regex": _PATTERN,
    "json_schema": _JSON_SCHEMA,
    "guided_json": _JSON_SCHEMA,
    "ebnf": _PATTERN,
    "guided_grammar": _PATTERN,
    "structural_tag": or_null(_OBJECT, STRING),
    "choices": _CHOICES,
    "guided_choice": _CHOICES,
    "choices_scoring": {"enum": [*SCORINGS, None], "default": None},
    "whitespace_pattern": _PATTERN,
    "guided_whitespace_pattern": _PATTERN,
}
_SHAPES: dict[str, Schema] = {
    "RerankRequest.documents": list_of({"anyOf": [SOME, _DOCUMENT]}),
    "RerankRequest.query": SOME,
    "MessagesBody.messages": list_of({"$ref": "#/components/schemas/Message"}),
    "DetokenizeBody.tokens": {"anyOf": [ANY_IDS, list_of(ANY_IDS)]},
    "TemplateBody.messages": list_of(_MESSAGE),
    "TokenizeBody.messages": list_of(_MESSAGE),
    "GenerateRequest.text": or_null(SOME, list_of(SOME)),
    "GenerateRequest.parts": or_null({**_PARTS, "contains": _PART}),
    "EncodeRequest.text": or_null(SOME, list_of(SOME)),
    "GenerateRequest.input_ids": or_null(IDS, list_of(IDS)),
    "EncodeRequest.input_ids": or_null(IDS, list_of(SOME), list_of(IDS)),
    "CompletionBody.prompt": _PROMPTS,
    "EmbeddingBody.input": _PROMPTS,
    "ClassifyRequest.input": _PROMPTS,
    "ResponsesBody.input": {"anyOf": [STRING, list_of(_OBJECT)]},
    "ChatRequest.messages": list_of(_MESSAGE),
    "ChatRequest.reasoning": or_null(
        {
            "type": "object",
            "properties": {
                "effort": {"enum": [*EFFORTS, None]},
                "enabled": {"type": ["boolean", "null"]},
            },
        }
    ),
    **CONSTRAINTS,
}
"""Schemas of fields with imprecise types: of one body (``Body.field``), or of every body."""


def fields_of(body: type, given: dict[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of a body's fields, with limits and descriptions.

    A field without a type is refused or has no effect, and is not documented.
    """
    declared, found = declarations(body), {}
    for name, schema in given.items():
        shaped = _SHAPES.get(f"{body.__name__}.{name}") or _SHAPES.get(name, schema)
        if set(shaped) <= {"default"}:
            continue
        if name in declared:
            shaped = _bounded(declared[name].bounds, shaped)
            shaped["description"] = declared[name].description
        found[name] = shaped
    return found


def _bounded(bounds: Bounds, schema: Schema) -> Schema:
    """Return a schema with the bounds added to each of its alternatives, entries and values."""
    found = {**schema, **bounds.keywords(schema.get("type", ""))}
    if "anyOf" in schema:
        found["anyOf"] = [_bounded(bounds, one) for one in schema["anyOf"]]
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            found[name] = _bounded(bounds, schema[name])
    return found


def sampling_schema() -> Schema:
    """Return the schema of ``sampling_params`` (see ``sampling_from``): null is unset, unknown
    names are refused."""
    fields = {name: CONSTRAINTS.get(name, {}) for name in (*NAMES, *WITHOUT_EFFECT)}
    fields |= {name: _nullable(parameter) for name, parameter in PARAMETERS.items()}
    fields |= {alias: fields[name] for alias, name in RENAMED.items()}
    return {
        "title": "SamplingParams",
        "description": "How tokens are sampled, and when a generation ends.",
        "type": "object",
        "properties": fields,
        "additionalProperties": False,
    }


def _nullable(parameter: Parameter) -> Schema:
    """Return the schema of a parameter that may be null. A list of stops may be a single stop."""
    schema = parameter.schema()
    one = [schema["items"]] if "maxItems" in schema else []
    return {
        "anyOf": [schema, *one, {"type": "null"}],
        "default": parameter.default,
        "description": parameter.description,
    }


def query_schemas(kind: type[msgspec.Struct]) -> dict[str, Schema]:
    """Return the schemas of a query's parameters by name."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    found = {}
    for name, parameter in declarations(kind).items():
        found[name] = {**parameter.schema(), "description": parameter.description}
        if defaults[name] is not None:
            found[name]["default"] = defaults[name]
    return found
