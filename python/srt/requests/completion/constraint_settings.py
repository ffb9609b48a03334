"""The constraint of a request, read from its sampling parameters."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from sglang.ir.constraint import KINDS, Constraint
from sglang.srt.core.depth import deeper

SCORINGS = ("tokens", "whole")
NAMES = (*KINDS, "whitespace_pattern", "choices_scoring")
MAX_NESTING = 128  # nesting levels of a schema or tag; a body has the same limit
MAX_SCORED = 1024  # choices scored as wholes; each may be a request of its own in the engine
_OF_JSON = ("json_schema", "structural_tag")


def take_constraint(values: dict[str, Any]) -> Constraint | None:
    """Remove the constraint's parameters from ``values``; return the constraint, None for none.

    Raises ValueError, whose message begins with the parameter's name.
    """
    given = {name: values.pop(name) for name in NAMES if name in values}
    _verify_scoring(given)
    whitespace = given.get("whitespace_pattern")
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) > 1:
        raise ValueError(f"{' and '.join(kinds)} exclude one another; give one of them.")
    if whitespace is not None:
        _verify_whitespace(whitespace, kinds)
    if not kinds:
        return None
    (kind,) = kinds
    if isinstance(given[kind], str):
        Constraint(kind, given[kind]).verify()  # before it is parsed
    constraint = Constraint(kind, _readers[kind](kind, given[kind]), whitespace)
    constraint.verify()
    if kind == "choices":
        constraint.choices()
    return constraint


def _verify_scoring(given: dict[str, Any]) -> None:
    scoring = given.get("choices_scoring")
    if scoring is None:
        return
    if scoring not in SCORINGS:
        raise ValueError(f"choices_scoring is {scoring!r:.60}; use one of {', '.join(SCORINGS)}.")
    if "choices" not in given:
        raise ValueError("choices_scoring is given without choices; give choices, or remove it.")
    count = len(given["choices"]) if isinstance(given["choices"], list) else 0
    if scoring == "whole" and count > MAX_SCORED:
        raise ValueError(
            f"choices has {count} entries; at most {MAX_SCORED} are scored as wholes. "
            "Give fewer, or choices_scoring: tokens."
        )


def _verify_whitespace(pattern: Any, kinds: list[str]) -> None:
    if not isinstance(pattern, str):
        raise ValueError(f"whitespace_pattern is {pattern!r:.60}; give a text.")
    if not pattern.isascii():
        raise ValueError("whitespace_pattern holds characters that no JSON has between tokens.")
    if not set(kinds) & set(_OF_JSON):
        raise ValueError(f"whitespace_pattern is given without {' or '.join(_OF_JSON)}; remove it.")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.60}; give a text.")
    return value


def _choices(name: str, value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} is {value!r:.60}; give a list of texts.")
    for choice in value:
        if not isinstance(choice, str):
            raise ValueError(f"{name} holds {choice!r:.60}; give texts.")
    return json.dumps(value, ensure_ascii=False)


def _schema(name: str, value: Any) -> str:
    return json_text(name, value, (dict, bool), "a JSON schema, as an object or as text")


def _tag(name: str, value: Any) -> str:
    return json_text(name, value, (dict,), "an object, or its text")


_readers = {
    "regex": _text,
    "json_schema": _schema,
    "ebnf": _text,
    "structural_tag": _tag,
    "choices": _choices,
}


def json_text(name: str, value: Any, kinds: tuple[type, ...], wanted: str) -> str:
    """Return ``value``, JSON text or its parsed form, as normalized JSON text.

    Raises ValueError if the value is none of ``kinds``, is nested too deeply, has a duplicate key,
    or a number that is not JSON. ``wanted``: the expected form, for the message.
    """
    try:
        found = json.loads(value, object_pairs_hook=_unique) if isinstance(value, str) else value
        text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise _too_deep(name) from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} is not valid JSON: {error}; give {wanted}.") from error
    if not isinstance(found, kinds):
        raise ValueError(f"{name} is {text:.60}; give {wanted}.")
    if text.count("[") + text.count("{") > MAX_NESTING and deeper(found, MAX_NESTING):
        raise _too_deep(name)
    return text


def _too_deep(name: str) -> ValueError:
    return ValueError(
        f"{name} is nested deeper than {MAX_NESTING} levels; flatten it, or use $ref."
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {twice!r:.60} appears twice in one object")
    return found
