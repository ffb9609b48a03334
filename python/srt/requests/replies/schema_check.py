"""Check for simple mistakes in a JSON schema, before a model or a grammar compiler reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_ONE = ("additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else",
        "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# Mistakes in every dialect of regular expressions, by the words of ``re``.
_BROKEN = (
    "unterminated character set", "unterminated subpattern", "unbalanced parenthesis",
    "nothing to repeat", "multiple repeat", "bad character range", "bad escape (end of pattern)",
    "min repeat greater", "repetition number is too large", "repeat is too large",
)  # fmt: skip


def first_fault(schema: Any) -> str:
    """Return a text about the first mistake, with its JSON pointer; "" if there is none.

    The function is iterative, so deep nesting cannot overflow the stack.
    """
    waiting = [("", schema)]
    while waiting:
        at, node = waiting.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, Mapping):
            return f"{at or '/'} is {node!r:.60}; a schema is an object"
        if fault := _own_fault(node):
            return f"{at}/{fault}"
        waiting += _children(at, node)
    return ""


def _own_fault(node: Mapping[str, Any]) -> str:
    kind = node.get("type", "object")
    for one in kind if isinstance(kind, list) else [kind]:
        if one not in TYPES:
            return f"type is {kind!r:.60}; use {', '.join(TYPES)}, or a list of them"
    pattern = node.get("pattern", "")
    if not isinstance(pattern, str) or (reason := _broken(pattern)):
        words = f" ({reason})" if isinstance(pattern, str) else ""
        return f"pattern is {pattern!r:.60}; give a regular expression{words}"
    for name in _LISTS:
        found = node.get(name, [])
        if not isinstance(found, list) and not (name == "items" and name in node):
            return f"{name} is {found!r:.60}; give a list of schemas"
    for name in _MAPS:
        if not isinstance(node.get(name, {}), Mapping):
            return f"{name} is {node[name]!r:.60}; give an object of schemas"
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        return f"required is {required!r:.60}; give a list of names"
    return ""


def _children(at: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _ONE:
        if name in node and not isinstance(node[name], list):
            yield f"{at}/{name}", node[name]
    for name in _LISTS:
        if isinstance(found := node.get(name), list):
            yield from ((f"{at}/{name}/{i}", child) for i, child in enumerate(found))
    for name in _MAPS:
        for key, child in node.get(name, {}).items():
            yield f"{at}/{name}/{key}", child


def _broken(pattern: str) -> str:
    """Return why the pattern is invalid in every dialect, "" if it may be valid. ECMA's empty
    classes, such as ``[]``, are not valid in Python but accepted here."""
    if "[]" in pattern or "[^]" in pattern:
        return ""
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:
        return next((words for words in _BROKEN if words in str(error)), "")
    except RecursionError:
        return "nested too deep"
    return ""
