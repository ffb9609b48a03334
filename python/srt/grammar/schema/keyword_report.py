"""Report on every keyword of a schema: enforced, without effect or refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sglang.srt.grammar.schema.schema_compiler import compile_schema
from sglang.srt.grammar.schema.schema_document import Document, Refusal, pointer, subschemas
from sglang.srt.grammar.schema.schema_keywords import kind
from sglang.srt.grammar.schema.string_formats import format_pattern

MOST_REFUSALS = 20  # looked for

NOTES = {
    "annotation": "says nothing about values",
    "place": "schemas kept for references",
    "not met": "no value that it speaks of gets there",
    "unknown": "not a keyword of JSON Schema; ignored, as the drafts have it",
    "format": "no draft gives this format a meaning; not enforced",
}


@dataclass(frozen=True)
class KeywordFinding:
    """A keyword of a schema. ``state`` is "enforced", "refused" or a key of NOTES."""

    pointer: str
    keyword: str
    state: str
    note: str = ""


def examine(schema: Any) -> list[KeywordFinding]:
    """A finding for each keyword, in the order of the schema; and for each refusal that is not
    about one. Raises Refusal where the schema is not one at all."""
    Document(schema)
    used, refusals = _refusals(schema)
    found = list(_walk(schema, "", used, refusals))
    at = {one.pointer for one in found}
    found += [
        KeywordFinding(where, "", "refused", reason)
        for where, reason in refusals.items()
        if where not in at
    ]
    return found


def _refusals(schema: Any) -> tuple[frozenset[str], dict[str, str]]:
    """Return the pointers of the keywords that the grammar uses, and the reasons of refusals by
    pointer. A refused keyword is removed and the schema compiled again, to find the next
    refusal."""
    left = copy.deepcopy(schema)
    refusals: dict[str, str] = {}
    for _ in range(MOST_REFUSALS):
        try:
            return compile_schema(left).used, refusals
        except Refusal as error:
            refusals.setdefault(error.pointer, error.reason)
            if not _remove(left, error.pointer):
                break
    return frozenset(), refusals


def _remove(schema: Any, where: str) -> bool:
    """Whether the keyword at a pointer was there; it no longer is."""
    path = [part.replace("~1", "/").replace("~0", "~") for part in where.split("/")[1:]]
    for part in path[:-1]:
        if isinstance(schema, list) and part.isdigit() and int(part) < len(schema):
            schema = schema[int(part)]
        elif isinstance(schema, dict) and part in schema:
            schema = schema[part]
        else:
            return False
    if not path or not isinstance(schema, dict) or path[-1] not in schema:
        return False
    del schema[path[-1]]
    return True


def _walk(
    schema: Any, at: str, used: frozenset[str], refusals: dict[str, str]
) -> Iterator[KeywordFinding]:
    if not isinstance(schema, dict):
        return
    inner: dict[str, list[tuple[Any, str]]] = {}
    for part, path in subschemas(schema):
        inner.setdefault(path.split("/")[1].replace("~1", "/").replace("~0", "~"), []).append(
            (part, path)
        )
    for keyword, value in schema.items():
        where = at + pointer(keyword)
        yield _finding(where, keyword, value, used, refusals)
        for part, path in inner.get(keyword, ()):
            yield from _walk(part, at + path, used, refusals)


def _finding(
    where: str, keyword: str, value: Any, used: frozenset[str], refusals: dict[str, str]
) -> KeywordFinding:
    if where in refusals:
        return KeywordFinding(where, keyword, "refused", refusals[where])
    state = kind(keyword)
    if state in ("enforced", "refused"):
        if where not in used:
            return KeywordFinding(where, keyword, "not met", NOTES["not met"])
        if keyword == "format" and format_pattern(str(value)) is None:
            return KeywordFinding(where, keyword, "annotation", NOTES["format"])
        return KeywordFinding(where, keyword, "enforced")
    return KeywordFinding(where, keyword, state, NOTES[state])
