"""JSON sheets by regular expression: characters by their names, and cities by a text about each.

Most of a sheet is forced, so that a runtime which writes forced tokens at once samples few.
"""

from __future__ import annotations

import random
import re

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.data import lines
from benchmark.harness.facts import facts, passage
from benchmark.json_decode.workloads import CHARACTER, CITY, city

LENGTH = 400
"""Tokens of a sheet, at most: every sheet ends before."""
SENTENCES = {False: 2, True: 24}
"""Of the text about a city."""


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    names = lines("character_names.txt")
    names = draw.sample(names, len(names))
    found: list[Item] = []
    for number in range(scale.items):
        if number % 2:
            count = SENTENCES[scale.long]
            text = passage(draw, facts(draw, count // 2), count)
            found.append({"prompt": f"{text}\n{city(number // 2)}", "pattern": CITY})
        else:
            found.append({"prompt": asked(names[number // 2 % len(names)]), "pattern": CHARACTER})
    return found


def asked(name: str) -> str:
    """Prompt that requests the sheet of a character."""
    return f"{name} is a character in Harry Potter. Please fill in the information about {name}.\n"


@sgl.function
def program(s, prompt, pattern):
    s += prompt + sgl.gen("sheet", max_tokens=LENGTH, regex=pattern)
    return s["sheet"]


async def plain(api: Api, item: Item) -> str:
    [sheet] = await api.complete(item["prompt"], LENGTH, regex=item["pattern"])
    return sheet


CLAIM = Claim(
    name="json_regex",
    title="JSON decoding by regular expression",
    paper="Fig. 5 and 6, JSON decoding; section 6.3: 1.6 times by the compressed state machine",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: re.fullmatch(item["pattern"], answer) is not None,
    speedup=1.6,
    constrained=True,
)
