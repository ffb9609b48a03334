"""Fields of a page from an API model: name, role and city, one gen each.

Each call of such a model pays for its whole prompt. With ``num_api_spec_tokens`` the first call
generates past its stop, and the other gens are read from its text; ``bill`` counts the tokens with
and without it. The claim itself is measured without it, on any runtime.
"""

from __future__ import annotations

import random

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Message, Scale
from benchmark.harness.facts import CITIES, JOBS, NAMES, filler

FIELDS = ("Name", "Role", "City")
ASK = "\nWrite one line for each of these: name, role, city."
SURNAMES = ("Fox", "Marlow", "Reed", "Stone", "Bell", "Hale", "Quill", "Lane")
FILLERS = {False: 2, True: 8}
"""Sentences of a page that tell no field."""
TOKENS = 16
AHEAD = 48
"""Tokens that a call may write for the gens after it."""


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    pages = [_page(draw, FILLERS[scale.long]) for _ in range(scale.items)]
    return [{"page": page, "fields": fields} for page, fields in pages]


def _page(draw: random.Random, fillers: int) -> tuple[str, dict[str, str]]:
    first, role, city = draw.choice(NAMES), draw.choice(JOBS), draw.choice(CITIES)
    name = f"{first} {draw.choice(SURNAMES)}"
    text = [f"{name} works as a {role}.", f"{first} lives in {city}."]
    text += [filler(draw) for _ in range(fillers)]
    return " ".join(text), dict(zip(FIELDS, (name, role, city)))


@sgl.function
def program(s, page, fields):
    s += sgl.user(page + ASK)
    with s.assistant():
        s += "Name:" + sgl.gen("Name", TOKENS, stop="\n") + "\n"
        s += "Role:" + sgl.gen("Role", TOKENS, stop="\n") + "\n"
        s += "City:" + sgl.gen("City", TOKENS, stop="\n")
    return {field: s[field].strip() for field in FIELDS}


speculating = sgl.function(program.func, num_api_spec_tokens=AHEAD)


async def plain(api: Api, item: Item) -> dict[str, str]:
    """The last turn is the assistant's, and is gone on with."""
    asked: Message = {"role": "user", "content": item["page"] + ASK}
    lines, found = "", {}
    for field in FIELDS:
        lines += f"{field}:"
        turn = {"role": "assistant", "content": lines}
        value = await api.chat([asked, turn], TOKENS, stop=["\n"])
        lines += value + "\n"
        found[field] = value.strip()
    return found


CLAIM = Claim(
    name="api_speculation",
    title="API speculation (three fields of a page)",
    paper="section 6.2: about a third of the input tokens",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: answer == item["fields"],
)
