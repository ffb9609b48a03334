"""Styles of ``json_schema`` in structural tags: objects whose properties are written as tags.

Each style is that of a model family. Strings are written as text, other values as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.grammar.guidance.tag_fields import items, refusal
from sglang.srt.grammar.schema.schema_document import pointer

BEGINS = {
    "deepseek_xml": '<｜DSML｜parameter name="{name}" string="{text}">',
    "glm_xml": "<arg_key>{name}</arg_key><arg_value>",
    "minimax_xml": '<parameter name="{name}">',
    "qwen_xml": "<parameter={name}>",
}
ENDS = {"deepseek_xml": "</｜DSML｜parameter>", "glm_xml": "</arg_value>"}
END = "</parameter>"
SAID = {"additionalProperties", "properties", "required", "type"}
NOTES = {"$comment", "$defs", "$schema", "default", "definitions", "deprecated", "description",
         "examples", "title"}  # fmt: skip


@dataclass(frozen=True)
class TagArgument:
    """A property of an object. ``schema`` is None where it is a string: any, or one of
    ``texts``."""

    begin: str
    end: str
    pointer: str
    required: bool
    schema: Any = None
    texts: tuple[str, ...] = ()


def arguments(style: str, schema: Any, at: str) -> list[TagArgument]:
    """The properties of an object. Raises GrammarError for keywords that a style does not support.

    Args:
        at: pointer of the schema.
    """
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise refusal(at, f"in style {style!r} the schema must be that of an object.")
    for keyword in schema.keys() - SAID - NOTES:
        raise refusal(f"{at}/{keyword}", f"not supported in style {style!r}; use style 'json'.")
    if schema.get("additionalProperties") not in (None, True, False):
        raise refusal(f"{at}/additionalProperties", "must be true or false in this style.")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise refusal(f"{at}/properties", "must be an object of schemas.")
    required = items(schema.get("required", []), f"{at}/required", empty=True)
    for i, name in enumerate(required):
        if name not in properties:
            raise refusal(f"{at}/required/{i}", f"{name!r} is none of the properties; add it.")
    shared = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    return [
        _argument(style, name, value, at + pointer("properties", name), name in required, shared)
        for name, value in properties.items()
    ]


def _argument(
    style: str, name: str, schema: Any, at: str, required: bool, shared: dict[str, Any]
) -> TagArgument:
    said = set(schema) - NOTES if isinstance(schema, dict) else set[str]()
    values = schema.get("enum", [schema.get("const")]) if said & {"enum", "const"} else []
    texts = tuple(value for value in values if isinstance(value, str))
    is_text = said == {"type"} and schema["type"] == "string"
    if texts:
        is_text = len(texts) == len(values) and said <= {"type", "enum", "const"}
    types = schema.get("type", "string") if isinstance(schema, dict) else "string"
    no_string = "string" not in (types if isinstance(types, list) else [types])
    is_json = not texts and (bool(values) or no_string)
    if not is_text and not is_json:
        raise refusal(
            at,
            f"in style {style!r} a property is a plain string, an enum of strings, or of a 'type' "
            "that is none; give it one, or use style 'json'.",
        )
    begin = BEGINS[style].format(name=name, text="true" if is_text else "false")
    value = None if is_text else {**shared, **schema}
    return TagArgument(begin, ENDS.get(style, END), at, required, value, texts)
