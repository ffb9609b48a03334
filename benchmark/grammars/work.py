"""Work: constraints and texts that the contenders get."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, permutations
from pathlib import Path
from typing import Any

from benchmark.json_decode.workloads import CHARACTER, CHARACTER_SCHEMA, CITY, SUMMARY

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test"))

from helpers.corpora import Case, regexes, schemas, suite


@dataclass(frozen=True)
class Item:
    """A constraint, and texts with variants: ``yes`` holds if any variant is accepted, ``no`` if
    none is.

    Attributes:
        kind: as of ``sglang.ir.constraint.Constraint``.
    """

    name: str
    kind: str
    text: str
    yes: tuple[tuple[str, ...], ...]
    no: tuple[tuple[str, ...], ...]


def lists(names: list[str], sample: int) -> dict[str, list[Item]]:
    """The lists called ``names``, at most ``sample`` items of each; 0: all."""
    makers = {"regexes": _regexes, "schemas": _schemas, "suite": _suite}
    found = {name: list(makers[name]()) for name in names}
    return {name: items[: sample or len(items)] for name, items in found.items()}


def _single(texts: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((text,) for text in texts)


def _regexes() -> Iterator[Item]:
    for row in regexes():
        yield Item(row.pattern, "regex", row.pattern, _single(row.matches), _single(row.misses))


def _schemas() -> Iterator[Item]:
    for row in schemas():
        yield Item(row.name, "json_schema", row.schema, _single(row.valid), _single(row.invalid))


def _suite() -> Iterator[Item]:
    """One item a schema. The suite does not mean an order of names, so any order will do."""

    def key(case: Case) -> str:
        return json.dumps(case.schema)

    for text, group in groupby(sorted(suite(), key=key), key):
        cases = list(group)
        yes = tuple(_orders(case.data) for case in cases if case.valid)
        no = tuple(_orders(case.data) for case in cases if not case.valid)
        yield Item(cases[0].name, "json_schema", text, yes, no)


def _orders(data: Any) -> tuple[str, ...]:
    made = [data]
    if isinstance(data, dict) and len(data) <= 4:
        made = [dict(order) for order in permutations(data.items())]
    return tuple(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in made)


def _character(rng: random.Random) -> str:
    def word() -> str:
        return "".join(rng.choice("abcdefgh ijklmnop") for _ in range(rng.randint(3, 14)))

    return (
        f'{{\n    "name": "{word()}",\n    "house": "Gryffindor",\n'
        f'    "blood status": "Half-blood",\n    "occupation": "ministry of magic",\n'
        f'    "wand": {{\n        "wood": "{word()}",\n        "core": "{word()}",\n'
        f'        "length": {rng.randint(5, 20)}.{rng.randint(0, 99)}\n    }},\n'
        f'    "alive": "Alive",\n    "patronus": "{word()}",\n    "bogart": "{word()}"\n}}'
    )


def _city(rng: random.Random) -> str:
    name = rng.choice(["Paris", "Lima", "New York", "São Paulo"])
    return (
        f'{{\n  "name": "{name}",\n  "country": "France",\n  "latitude": 48.8{rng.randint(0, 9)},\n'
        f'  "population": {rng.randint(1000, 9999999)},\n'
        f'  "top 3 landmarks": ["Louvre", "Eiffel Tower", "Notre Dame"]\n}}'
    )


def _object(rng: random.Random) -> str:
    def word() -> str:
        return "".join(rng.choice("abcdefgh ijklmnop") for _ in range(rng.randint(3, 14)))

    value = {
        "name": word(), "house": "Slytherin", "blood status": "Pure-blood", "occupation": "auror",
        "wand": {"wood": word(), "core": word(), "length": rng.randint(5, 20)},
        "alive": True, "patronus": word(), "bogart": word(),
    }  # fmt: skip
    return json.dumps(value, separators=(",", ":"))


def table(seed: int) -> list[Item]:
    """The constraints whose compile and mask times are shown, with texts to walk."""
    rng = random.Random(seed)
    known = {row.name: row for row in schemas()}
    middle, large = known["vega-lite/FieldDefWithoutScale"], known["vega-lite/TimeDef"]
    words = [
        "".join(rng.choice("abcdefghijklmnopqrstuvwxyz -") for _ in range(rng.randint(4, 24)))
        for _ in range(1000)
    ]
    words = [f"{word}{i}" for i, word in enumerate(words)]
    tag = {
        "structures": [
            {"begin": "<function=look_up>", "schema": json.loads(CHARACTER_SCHEMA),
             "end": "</function>"}
        ],
        "triggers": ["<function="],
    }  # fmt: skip
    summary = '{"summary": "A short text that says what the other one does.", "grade": "B+"}'
    call = f"Let me look. <function=look_up>{_object(rng)}</function> That is it."

    def item(name: str, kind: str, text: str, *samples: str) -> Item:
        return Item(name, kind, text, _single(samples), ())

    return [
        item("character regex", "regex", CHARACTER, *(_character(rng) for _ in range(5))),
        item("summary regex", "regex", SUMMARY, summary),
        item("city regex", "regex", CITY, *(_city(rng) for _ in range(5))),
        item("1,000 choices", "choices", json.dumps(words), *words[:10]),
        item("character schema", "json_schema", CHARACTER_SCHEMA,
             *(_object(rng) for _ in range(5))),
        item(f"{len(middle.schema) // 1000} kB schema", "json_schema", middle.schema,
             *middle.valid),
        item(f"{len(large.schema) // 1000} kB schema", "json_schema", large.schema, *large.valid),
        item("(((.{1,30}){1,30}){1,30})", "regex", "(((.{1,30}){1,30}){1,30})", "a" * 60),
        item("structural tag", "structural_tag", json.dumps(tag), call),
    ]  # fmt: skip
