"""Keywords of JSON Schema: those enforced, those without effect, and those refused with advice.

The names are those of drafts 3 to 2020-12. By the drafts any other name says nothing about values;
here it is refused where it is likely a slip for a known one.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from typing import Any

ANNOTATIONS = frozenset({
    "$comment", "$id", "$schema", "$vocabulary", "contentEncoding", "contentMediaType",
    "contentSchema", "default", "deprecated", "description", "examples", "id", "readOnly", "title",
    "writeOnly",
})  # fmt: skip
PLACES = frozenset({"$anchor", "$defs", "$dynamicAnchor", "$recursiveAnchor", "definitions"})
REFUSED = {
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
    "disallow": "a keyword of draft 3; use not",
    "divisibleBy": "a keyword of draft 3; use multipleOf",
    "extends": "a keyword of draft 3; use allOf",
    "maxContains": "say with prefixItems and items what each item is",
    "minContains": "say with prefixItems and items what each item is",
}
# Refused beside other schemas for the same value, which evaluate parts of it.
ALONE = {
    "unevaluatedItems": "use items beside prefixItems, in one schema",
    "unevaluatedProperties": "write all properties in one schema, with additionalProperties",
}
EVALUATING = frozenset({"$ref", "allOf", "anyOf", "contains", "dependentSchemas", "else", "if",
                        "oneOf", "then"})  # fmt: skip
OF_NUMBERS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
OF_STRINGS = ("format", "maxLength", "minLength", "pattern")
OF_ARRAYS = ("additionalItems", "contains", "items", "maxItems", "minItems", "prefixItems",
             "unevaluatedItems", "uniqueItems")  # fmt: skip
OF_OBJECTS = ("additionalProperties", "dependencies", "dependentRequired", "dependentSchemas",
              "maxProperties", "minProperties", "patternProperties", "properties",
              "propertyNames", "required", "unevaluatedProperties")  # fmt: skip
OF_ALL = ("$ref", "allOf", "anyOf", "const", "else", "enum", "if", "not", "oneOf", "then", "type")
SCOPE = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
CONDITIONS = ("if", "not", "dependencies", "dependentRequired", "dependentSchemas")
ENFORCED = frozenset((*OF_NUMBERS, *OF_STRINGS, *OF_ARRAYS, *OF_OBJECTS, *OF_ALL))
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def places_of(schema: dict[str, Any]) -> dict[str, int]:
    """Index of each keyword among the others, which gives the order of the names in it. Objects
    among listed values come first: they are written as they stand there. Conditions come last."""
    places = {keyword: at for at, keyword in enumerate(schema)}
    if "properties" in places:  # applied together with those of its scope
        places |= {keyword: places["properties"] for keyword in SCOPE if keyword in places}
    places |= {keyword: -1 for keyword in ("const", "enum") if keyword in places}
    return places | {keyword: len(schema) for keyword in CONDITIONS if keyword in places}


def kind(keyword: str) -> str:
    """Kind of a keyword: "enforced", "annotation", ``place`` (a part reached through references),
    "refused" or "unknown"."""
    if keyword in ENFORCED:
        return "enforced"
    if keyword in ANNOTATIONS:
        return "annotation"
    if keyword in PLACES:
        return "place"
    return "refused" if keyword in REFUSED else "unknown"


@lru_cache(maxsize=1024)
def slip(keyword: str) -> str | None:
    """The enforced keyword that an unknown name is likely meant for."""
    if kind(keyword) != "unknown":
        return None
    same = [known for known in ENFORCED if known.lower() == keyword.lower()]
    close = same or get_close_matches(keyword, sorted(ENFORCED), 1, 0.9)
    # A name that holds all of it, such as tsAdditionalProperties, is an extension.
    return next((known for known in close if same or known[1:] not in keyword), None)
