"""JSON sheets by schema: characters by their names, and events by a text about each."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.data import lines
from benchmark.harness.facts import CITIES, NAMES, facts, passage
from benchmark.json_decode.workloads import CHARACTER_SCHEMA
from benchmark.json_regex.claim import LENGTH, SENTENCES, asked

CHARACTER: dict[str, Any] = json.loads(CHARACTER_SCHEMA)
_TEXT = {"type": "string", "pattern": "^[A-Za-z ]{1,16}$"}
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": _TEXT,
        "kind": {"enum": ["concert", "conference", "exhibition", "market", "match", "workshop"]},
        "place": {
            "type": "object",
            "properties": {"city": _TEXT, "street": _TEXT,
                           "house number": {"type": "integer", "minimum": 1, "maximum": 200}},
            "required": ["city", "street", "house number"],
            "additionalProperties": False,
        },
        "day": {"enum": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday",
                         "Sunday"]},
        "begins at": {"type": "integer", "minimum": 0, "maximum": 23},
        "tickets needed": {"type": "boolean"},
        "speakers": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 3},
    },
    "required": ["title", "kind", "place", "day", "begins at", "tickets needed", "speakers"],
    "additionalProperties": False,
}  # fmt: skip


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    names = lines("character_names.txt")
    names = draw.sample(names, len(names))
    found: list[Item] = []
    for number in range(scale.items):
        if number % 2:
            found.append({"prompt": _event(draw, SENTENCES[scale.long]), "shape": EVENT})
        else:
            found.append({"prompt": asked(names[number // 2 % len(names)]), "shape": CHARACTER})
    return found


def _event(draw: random.Random, sentences: int) -> str:
    host, place = draw.choice(NAMES), draw.choice(CITIES)
    text = passage(draw, facts(draw, sentences // 2), sentences)
    return f"{text}\n{host} invites to {place}. Please describe the event as JSON.\n"


@sgl.function
def program(s, prompt, shape):
    s += prompt + sgl.gen("sheet", max_tokens=LENGTH, json_schema=shape, whitespace_pattern="")
    return s["sheet"]


async def plain(api: Api, item: Item) -> str:
    [sheet] = await api.complete(item["prompt"], LENGTH, json_schema=item["shape"])
    return sheet


def right(item: Item, answer: str) -> bool:
    """Whether the text is JSON of the schema."""
    try:
        jsonschema.validate(json.loads(answer), item["shape"])
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


CLAIM = Claim(
    name="json_schema",
    title="JSON decoding by schema",
    paper="section 6, JSON decoding; the paper has regular expressions alone",
    items=items,
    program=program,
    plain=plain,
    right=right,
    speedup=1.6,
    constrained=True,
)
