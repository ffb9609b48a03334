"""Fields of a page from an API model: name, role and city, one gen each, behind solved examples.

Each call of such a model pays for its whole prompt. With ``num_api_spec_tokens`` the first call
writes on, and the others are read from what it has written: see ``bill``, which counts both. The
claim itself is the program without it, as any runtime can be asked.
"""

from __future__ import annotations

import random

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Message, Scale
from benchmark.harness.facts import CITIES, JOBS, NAMES, filler

FIELDS = ("Name", "Role", "City")
ASK = "\nWrite one line for each of these: name, role, city."
SURNAMES = ("Fox", "Marlow", "Reed", "Stone", "Bell", "Hale", "Quill", "Lane")
EXAMPLES = 2
FILLERS = {False: 2, True: 8}
"""Sentences of a page that tell no field. On pages far longer than these the embedded model leaves
the form of the examples, and a call that has run on in vain is paid for as well."""
TOKENS = 16
AHEAD = 48
"""Tokens that a call may write for the gens behind it."""


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    pages = [_page(draw, FILLERS[scale.long]) for _ in range(EXAMPLES + scale.items)]
    examples = [
        {"page": page, "lines": "\n".join(f"{field}: {value}" for field, value in fields.items())}
        for page, fields in pages[:EXAMPLES]
    ]
    return [
        {"examples": examples, "page": page, "fields": fields} for page, fields in pages[EXAMPLES:]
    ]


def _page(draw: random.Random, fillers: int) -> tuple[str, dict[str, str]]:
    first, role, city = draw.choice(NAMES), draw.choice(JOBS), draw.choice(CITIES)
    name = f"{first} {draw.choice(SURNAMES)}"
    text = [f"{name} works as a {role}.", f"{first} lives in {city}."]
    text += [filler(draw) for _ in range(fillers)]
    return " ".join(text), dict(zip(FIELDS, (name, role, city)))


@sgl.function
def program(s, examples, page, fields):
    for example in examples:
        s += sgl.user(example["page"] + ASK) + sgl.assistant(example["lines"])
    s += sgl.user(page + ASK)
    with s.assistant():
        s += "Name:" + sgl.gen("Name", TOKENS, stop="\n") + "\n"
        s += "Role:" + sgl.gen("Role", TOKENS, stop="\n") + "\n"
        s += "City:" + sgl.gen("City", TOKENS, stop="\n")
    return {field: s[field].strip() for field in FIELDS}


speculating = sgl.function(program.func, num_api_spec_tokens=AHEAD)


async def plain(api: Api, item: Item) -> dict[str, str]:
    """The last turn is the assistant's, and is gone on with."""
    messages: list[Message] = []
    for example in item["examples"]:
        messages.append({"role": "user", "content": example["page"] + ASK})
        messages.append({"role": "assistant", "content": example["lines"]})
    messages.append({"role": "user", "content": item["page"] + ASK})
    lines, found = "", {}
    for field in FIELDS:
        lines += f"{field}:"
        turn = {"role": "assistant", "content": lines}
        value = await api.chat([*messages, turn], TOKENS, stop=["\n"])
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
