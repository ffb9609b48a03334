"""Checked reading of the fields of structural tags."""

from __future__ import annotations

from typing import Any

from sglang.srt.grammar.grammar_protocol import GrammarError

NO_LIMIT = -1


def refusal(at: str, reason: str) -> GrammarError:
    return GrammarError(f"structural_tag at {at or '/'}: {reason}")


def fields_of(value: Any, at: str, *known: str, **only: Any) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object of allowed fields. ``known`` are the names of fields
    with any value; ``only`` are fields that must have exactly the given value. Raises a refusal
    that names the field."""
    if not isinstance(value, dict):
        raise refusal(at, "must be a JSON object.")
    for name, given in value.items():
        if name in only:
            if given != only[name] or type(given) is not type(only[name]):
                raise refusal(f"{at}/{name}", f"{given!r} is not supported; leave it out.")
        elif name not in known:
            names = ", ".join(sorted([*known, *only]))
            raise refusal(f"{at}/{name}", f"not supported; use {names}.")
    return value


def text_of(value: Any, at: str, empty: bool = True) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise refusal(at, f"must be a string{'' if empty else ', not empty'}.")
    return value


def items(value: Any, at: str, empty: bool = False) -> list[Any]:
    if not isinstance(value, list) or not (value or empty):
        raise refusal(at, f"must be a list{'' if empty else ', not empty'}.")
    return value


def strings(value: Any, at: str, empty: bool = False) -> list[str]:
    """Return a list of non-empty strings. ``empty``: the list may be empty."""
    return [text_of(one, f"{at}/{i}", empty=False) for i, one in enumerate(items(value, at, empty))]


def flag(value: Any, at: str) -> bool:
    if not isinstance(value, bool | None):
        raise refusal(at, f"{value!r} is not true or false.")
    return bool(value)


def count(value: Any, at: str, most: int) -> int:
    """Return a whole number from 0 to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise refusal(at, f"is {value!r}; it must be a whole number from 0 to {most}.")
    return value
