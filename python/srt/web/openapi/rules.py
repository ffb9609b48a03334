"""Rules: requirements on a body as a whole, for /openapi.json; ``limits`` has those on each field.

The handlers enforce the rules, like the limits. Some rules are not documented, because no schema
can express them: whether a text fits the context, whether a pattern, a grammar or a schema can be
enforced, and the order of the messages of a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang.srt.web.openai import completions
from sglang.srt.web.openai.responses.responses_body import INCLUDES
from sglang.srt.web.openapi.limits import ANY_IDS, IDS, SOME, STRING, Schema, list_of, or_null


def _either(kind: Schema) -> Schema:
    """Return the schema of one value of a kind, or a list of such values."""
    return {"anyOf": [kind, list_of(kind)]}


def _lists(kind: Schema) -> Schema:
    """Return the schema of a non-empty list of token ids, or of a list of lists of a kind."""
    return {"anyOf": [IDS, list_of(kind)]}


# Fields that are declared only to be refused with a reason; they are not documented.
REFUSED: dict[str, Sequence[str]] = {
    "CompletionBody": tuple(completions.INSTEAD),
    "EmbeddingBody": ("truncate_prompt_tokens",),
    "EncodeRequest": ("truncate_prompt_tokens",),
    "ClassifyRequest": ("truncate_prompt_tokens",),
    "ScoreRequest": ("truncate_prompt_tokens",),
    "RerankRequest": ("truncate_prompt_tokens",),
    "ResponsesBody": ("max_tokens", "response_format", "n"),
    "MessagesBody": ("stop", "n"),
    "OllamaGenerateBody": ("suffix", "template", "context"),
}
# Fields that are required and not null, although their types are optional.
NEEDED: dict[str, Sequence[str]] = {
    "EmbeddingBody": ("input",),
    "ClassifyRequest": ("input",),
    "RerankRequest": ("query", "documents"),
    "TemplateBody": ("messages",),
}
# Additional requirements at one of the paths that have the same body.
NEEDED_AT: dict[str, Schema] = {
    "/v1/messages": {"required": ["max_tokens"], "properties": {"max_tokens": {"type": "integer"}}},
}
# Groups of fields. A body has all fields of one group and none of the others. None: the field's own
# schema, without null. A prompt must not be empty, so query and item must not both be empty.
GROUPS: dict[str, Sequence[dict[str, Schema | None]]] = {
    "SubmitBody": ({"prompt": None, "placeholders": None}, {"graph": None}),
    "CancelBody": ({"semantic_var_id": None}, {"submission_id": None}),
    "GenerateRequest": ({"text": None}, {"input_ids": None}, {"parts": None}),
    "EncodeRequest": ({"text": None}, {"input_ids": None}),
    "TokenizeBody": ({"prompt": None}, {"text": None}, {"content": None}, {"messages": None}),
    "ScoreRequest": (
        {"query": SOME, "items": _either(STRING), "label_token_ids": IDS},
        {"query": STRING, "items": _either(SOME), "label_token_ids": IDS},
        {"query": IDS, "items": _lists(ANY_IDS), "label_token_ids": IDS},
        {"query": ANY_IDS, "items": _lists(IDS), "label_token_ids": IDS},
        {"text_1": _either(SOME), "text_2": _either(SOME)},
    ),
}
# Bodies that need at least one of several fields, each with its schema.
ANY_OF: dict[str, dict[str, Schema]] = {
    "AbortBody": {
        "rid": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}]},
        "abort_all": {"const": True},
    },
}
VALUES: dict[str, Schema] = {
    "include": or_null({"type": "array", "items": {"enum": list(INCLUDES)}}),
    "truncation": {"enum": ["disabled", None]},
    "modalities": {"enum": [["text"], None]},
}


def ruled(body: str, component: Schema) -> Schema:
    """Return the schema of a body with its rules."""
    fields = {
        name: {**schema, **VALUES.get(name, {})}
        for name, schema in component["properties"].items()
        if name not in REFUSED.get(body, ())
    }
    needed = NEEDED.get(body, ())
    fields |= {name: _given(fields[name]) for name in needed}
    required = [*component.get("required", ()), *needed]
    found = {**component, "properties": fields, "required": required}
    if body in ANY_OF:
        found["anyOf"] = [
            {"properties": {name: form}, "required": [name]} for name, form in ANY_OF[body].items()
        ]
    if body in GROUPS:
        groups = GROUPS[body]
        names = {name for group in groups for name in group}
        found["anyOf"] = [_alone(group, names, fields) for group in groups]
        for name in names:
            fields.pop(name, None)  # each alternative has the field's schema
    return found


def ruled_at(path: str, body: Schema) -> Schema:
    """Return the schema of the body at one path."""
    return {"allOf": [body, NEEDED_AT[path]]} if path in NEEDED_AT else body


def _given(schema: Schema) -> Schema:
    """Return the schema of a field without null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind.get("type") != "null"]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if len(kinds) == 1:
        return {**rest, **kinds[0]}
    return {**rest, "anyOf": kinds} if kinds else rest


def _alone(group: dict[str, Schema | None], names: set[str], fields: Schema) -> Schema:
    own = {name: form or _given(fields[name]) for name, form in group.items()}
    others: Schema = {name: {"type": "null"} for name in names - set(group)}
    return {"properties": {**own, **others}, "required": list(group)}
