"""Free text at the beginning and the end of formats of structural tags.

A malformed format has no free text: it is refused when it is written.
"""

from __future__ import annotations

from typing import Any

FREE = ("any_text", "dispatch", "triggered_tags")
MAYBE_EMPTY = ("any_text", "optional", "regex", "star")


def begins_free(value: Any) -> bool:
    """Whether a format may begin with free text."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind in FREE:
        return not value.get("at_least_one")
    if kind == "tag":
        return not value.get("begin") and begins_free(value.get("content"))
    if kind in ("or", "tags_with_separator"):
        return any(map(begins_free, [*_list(value, "elements"), *_list(value, "tags")]))
    if kind == "sequence":
        for one in _list(value, "elements"):
            if begins_free(one):
                return True
            if not _maybe_empty(one):
                return False
        return False
    return begins_free(value.get("content"))


def begins_mixed(value: Any) -> bool:
    """Whether a format may begin with free text, and otherwise with something else. Such free text
    runs over the other beginning: the two cannot be separated."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind == "or":
        free = [begins_free(one) for one in _list(value, "elements")]
        return (any(free) and not all(free)) or any(map(begins_mixed, _list(value, "elements")))
    if kind == "sequence":
        return any(map(begins_mixed, _list(value, "elements")[:1]))
    if kind == "tag" and value.get("begin"):
        return False
    return begins_mixed(value.get("content"))


def is_open(value: Any) -> bool:
    """Whether a format may end in free text, which ends only at what follows it."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind in FREE:
        closed = value.get("at_least_one") and value.get("stop_after_first")
        return not closed or any(map(is_open, _list(value, "tags")))
    if kind == "tag":
        ends = value.get("end", "")
        return not all(ends if isinstance(ends, list) else [ends]) and is_open(value.get("content"))
    if kind in ("or", "tags_with_separator"):
        return any(map(is_open, [*_list(value, "elements"), *_list(value, "tags")]))
    if kind == "sequence":
        for one in reversed(_list(value, "elements")):
            if is_open(one):
                return True
            if not _maybe_empty(one):
                return False
        return False
    return is_open(value.get("content"))


def _maybe_empty(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind == "const_string":
        return not value.get("value")
    if kind == "repeat":
        return not value.get("min") or _maybe_empty(value.get("content"))
    if kind == "plus":
        return _maybe_empty(value.get("content"))
    return kind in MAYBE_EMPTY


def _list(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []
