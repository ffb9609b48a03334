"""The lists under ``test/data``: real regexes, real schemas, the JSON-Schema-Test-Suite."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data"


@dataclass(frozen=True)
class Regex:
    """A pattern in Python's syntax, with texts that ``re.fullmatch`` matches and does not."""

    pattern: str
    matches: tuple[str, ...]
    misses: tuple[str, ...]
    source: str
    licence: str


@dataclass(frozen=True)
class Schema:
    """A JSON schema, with instances that ``jsonschema`` accepts and refuses.

    ``schema`` and all instances are JSON texts. Those of ``valid`` are compact and write the
    properties of an object in the order of the schema (see ``test/data/README.md``).
    """

    name: str
    schema: str
    valid: tuple[str, ...]
    invalid: tuple[str, ...]
    source: str
    licence: str


@dataclass(frozen=True)
class Case:
    """One test of the JSON-Schema-Test-Suite."""

    name: str
    schema: Any
    data: Any
    valid: bool


@cache
def regexes() -> tuple[Regex, ...]:
    """300 of them."""
    with open(DATA / "regexes.jsonl", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        row["matches"], row["misses"] = tuple(row["matches"]), tuple(row["misses"])
    return tuple(Regex(**row) for row in rows)


@cache
def schemas() -> tuple[Schema, ...]:
    """Some 300 real schemas."""
    with gzip.open(DATA / "schemas.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        row["valid"], row["invalid"] = tuple(row["valid"]), tuple(row["invalid"])
    return tuple(Schema(**row) for row in rows)


@cache
def suite() -> tuple[Case, ...]:
    """The required cases of draft 2020-12."""
    found = []
    for file in sorted((DATA / "json-schema-test-suite" / "draft2020-12").glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            for test in group["tests"]:
                name = f"{file.stem}: {group['description']}: {test['description']}"
                found.append(Case(name, group["schema"], test["data"], test["valid"]))
    return tuple(found)
