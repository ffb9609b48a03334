"""Workloads of JSON decoding in the SGLang paper: characters and cities as JSON by regex."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

_TEXT = r'"[\w\d\s]{1,16}"'
Fields = dict[str, "str | Fields"]

_CHARACTER: Fields = {
    "name": _TEXT,
    "house": '"(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)"',
    "blood status": '"(Pure-blood|Half-blood|Muggle-born)"',
    "occupation": '"(student|teacher|auror|ministry of magic|death eater|order of the phoenix)"',
    "wand": {"wood": _TEXT, "core": _TEXT, "length": r"[0-9]{1,2}\.[0-9]{0,2}"},
    "alive": '"(Alive|Deceased)"',
    "patronus": _TEXT,
    "bogart": _TEXT,
}
_CITY: Fields = {
    "name": _TEXT,
    "country": _TEXT,
    "latitude": r"[-+]?[0-9]{0,3}\.?[0-9]{0,2}",  # the paper's has no end: a small model finds none
    "population": r"[-+]?[0-9]{1,9}",
    "top 3 landmarks": rf"\[{_TEXT}, {_TEXT}, {_TEXT}\]",
}
_SUMMARY = {"summary": r'"[\w\d\s]+\."', "grade": r'"[ABCD][+-]?"'}


def _object(fields: Fields, indent: int) -> str:
    """The pattern of an object: a name a line, ``indent`` spaces a level."""

    def write(level: Fields, depth: int) -> str:
        lines = []
        for name, value in level.items():
            text = value if isinstance(value, str) else write(value, depth + 1)
            lines.append(" " * indent * (depth + 1) + f'"{name}": {text}')
        return r"\{\n" + r",\n".join(lines) + r"\n" + " " * indent * depth + r"\}"

    return write(fields, 0)


CHARACTER = _object(_CHARACTER, 4)
CITY = _object(_CITY, 2)
SUMMARY = r"\{" + ", ".join(f'"{name}": {text}' for name, text in _SUMMARY.items()) + r"\}"
NOTHING_FORCED = "[a-zA-Z ]{200}"
ANYTHING = r"[\s\S]*"

_STRING = {"type": "string", "pattern": "^[A-Za-z ]{1,16}$"}
CHARACTER_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": _STRING,
            "house": {"enum": ["Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"]},
            "blood status": {"enum": ["Pure-blood", "Half-blood", "Muggle-born"]},
            "occupation": {"enum": ["student", "teacher", "auror", "ministry of magic",
                                    "death eater", "order of the phoenix"]},
            "wand": {
                "type": "object",
                "properties": {"wood": _STRING, "core": _STRING,
                               "length": {"type": "integer", "minimum": 5, "maximum": 20}},
                "required": ["wood", "core", "length"],
                "additionalProperties": False,
            },
            "alive": {"type": "boolean"},
            "patronus": _STRING,
            "bogart": _STRING,
        },
        "required": ["name", "house", "blood status", "occupation", "wand", "alive", "patronus",
                     "bogart"],
        "additionalProperties": False,
    }
)  # fmt: skip

_GIVEN = (
    "Harry Ron Hermione Luna Neville Ginny Draco Sirius Remus Minerva Albus Severus Fred George "
    "Cho Cedric"
)
_FAMILY = "Potter Weasley Granger Lovegood"
_CITIES = (
    "Athens Baku Berlin Bogota Cairo Dakar Delhi Dhaka Dublin Hanoi Havana Helsinki Istanbul "
    "Jakarta Kabul Kyiv Kyoto Lagos Lima Lisbon London Lyon Madrid Manila Milan Minsk Mumbai "
    "Nairobi Osaka Oslo Paris Perth Porto Prague Pune Quito Rabat Riga Rome Santiago Seoul "
    "Seville Shanghai Sofia Sydney Taipei Tallinn Tbilisi Tehran Tokyo Toronto Tunis Turin "
    "Valencia Vienna Vilnius Warsaw Yerevan Zagreb Zurich Accra Amman Ankara Bern"
)


def character(number: int) -> str:
    given, family = _GIVEN.split(), _FAMILY.split()
    name = f"{given[number % 16]} {family[number // 16 % 4]}"
    return f"{name} is a character in Harry Potter. Please fill in the information about {name}.\n"


def city(number: int) -> str:
    name = _CITIES.split()[number % 64]
    return f"Please describe {name} as JSON: its country, latitude, population and landmarks.\n"


@dataclass(frozen=True)
class Workload:
    """A constraint and its prompts.

    Attributes:
        constraint: the key of ``sampling_params`` and its value.
        length: the most tokens an answer has; long enough to end.
        forced: least share of tokens never sampled that is claimed, or None.
        speedup: least throughput with jump-forward over that without that is claimed, or None.
    """

    constraint: tuple[str, str]
    prompt: Callable[[int], str]
    length: int
    forced: float | None = None
    speedup: float | None = None


WORKLOADS = {
    "character": Workload(("regex", CHARACTER), character, 400, 0.68, 1.6),
    "city": Workload(("regex", CITY), city, 400, 0.41, 1.6),
    "schema": Workload(("json_schema", CHARACTER_SCHEMA), character, 400, 0.20),
    "nothing": Workload(("regex", NOTHING_FORCED), character, 400, None, 0.98),
}
