"""Contents of customers' requests: prompts that share beginnings, and constraints with checks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import jsonschema

Json = dict[str, Any]

_LINE = (
    "lamp rope key box shed lives works paints Oslo Lisbon Mara Fox is red blue old years what "
    "who where count to nine the a and not 17 25 brave kind Falcon opposite of hot cold tell"
)
_WORDS = _LINE.split()


def words(random: Random, count: int) -> str:
    return " ".join(random.choices(_WORDS, k=count))


_DOCUMENTS = [words(Random(i), 40 + 40 * i) + ".\n" for i in range(8)]  # 40 to 320 words


def prompt(random: Random) -> str:
    """Mostly something known with a new end."""
    known = random.choice(_DOCUMENTS) if random.random() < 0.7 else ""
    new = random.choice([2, 5, 20, 200])
    return f"{known}{words(random, new)}\nQuestion: {words(random, 4)}?\nAnswer:"


def sampling(random: Random) -> Json:
    """Parameters under names that all routes have."""
    found: Json = {"max_tokens": random.choice([1, 4, 16, 40, 120, 300])}
    choices: list[Json] = [
        {"temperature": 0},
        {"temperature": 0, "ignore_eos": True},
        {"temperature": 1.3, "top_p": 0.9, "ignore_eos": True},
        {"temperature": 0.7, "top_k": 20, "seed": random.randrange(1 << 40)},
        {"temperature": 0, "stop": ["\n", "red"]},
        {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "min_p": 0.02},
        {"speculation": "ngram", "temperature": 0, "ignore_eos": True},
    ]
    return {**found, **random.choice(choices)}


def _schema(random: Random) -> Json:
    """A schema of small objects; a new one nearly every time."""
    names = random.sample(["name", "age", "city", "pet", "house"], random.randint(1, 3))
    kinds: list[Json] = [
        {"type": "string", "maxLength": random.randint(1, 6)},
        {"type": "integer", "minimum": 0, "maximum": random.choice([9, 99, 1234])},
        {"type": "boolean"},
        {"enum": ["red", "blue", None]},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    ]
    return {
        "type": "object",
        "properties": {name: random.choice(kinds) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def constraint(random: Random) -> tuple[Json, Callable[[str], bool]]:
    """A constraint that every route takes, and whether a whole text keeps it."""
    kind = random.choice(["regex", "regex", "json_schema", "ebnf", "choices", "whole"])
    if kind == "regex":
        low, count = random.randrange(9), random.randint(1, 4)
        pattern = random.choice(
            [f"[{low}-9]{{{count}}}-[a-f]{{2}}", "(red|blue) (cat|dog)s?", "[A-Z][a-z]{1,5}!"]
        )
        return {"regex": pattern}, lambda text: re.fullmatch(pattern, text) is not None
    if kind == "json_schema":
        schema = _schema(random)

        def fits(text: str) -> bool:
            return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))

        return {"json_schema": schema}, fits
    if kind == "ebnf":
        grammar = f'root ::= ("yes" | "no") " " [{random.randrange(9)}-9] "."'
        return {"ebnf": grammar}, lambda text: re.fullmatch(r"(yes|no) [0-9]\.", text) is not None
    options = sorted({words(random, 2) for _ in range(random.randint(2, 6))})
    scoring: Json = {"choices_scoring": "whole"} if kind == "whole" else {}
    return {"choices": options, **scoring}, lambda text: text in options
