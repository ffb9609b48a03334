"""Completion in HellaSwag's form: twenty examples, a passage, and ``select`` among four endings of
differing lengths. Two levels are shared: the examples by all passages, and a passage by its
endings.

The passages are generated, and a question stands at the end of each, so that the embedded model can
tell the right ending; the others answer questions about other passages.
"""

from __future__ import annotations

import random

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.facts import facts, filler, passage

SHOTS, FACTS = 20, 3
SENTENCES = {False: FACTS, True: 7}
"""Of a passage. Twenty long examples are about as many tokens as twenty of HellaSwag."""
ENDING = {False: 0, True: 2}
"""Sentences after an ending's answer, at most."""


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    shots = ""
    for _ in range(SHOTS):
        text, endings, right = _question(draw, scale.long)
        shots += f"{text}{endings[right]}\n\n"
    found: list[Item] = []
    for _ in range(scale.items):
        text, endings, right = _question(draw, scale.long)
        found.append(
            {"examples": shots, "passage": text, "endings": endings, "right": endings[right]}
        )
    return found


def _question(draw: random.Random, long: bool) -> tuple[str, list[str], int]:
    """A passage with a question, four endings, and the number of the right one."""
    told = facts(draw, FACTS)
    asked = told[0]
    answers = sorted({fact.answer for fact in facts(draw, 20)} - {fact.answer for fact in told})
    answers = draw.sample(answers, 3)
    right = draw.randrange(4)
    answers.insert(right, asked.answer)
    endings = []
    for answer in answers:
        more = [filler(draw).rstrip(".") for _ in range(draw.randint(0, ENDING[long]))]
        endings.append(" " + ". ".join([answer, *more]))
    text = passage(draw, told, SENTENCES[long])
    return f"Text: {text}\nQuestion: {asked.question}\nAnswer:", endings, right


@sgl.function
def program(s, examples, passage, endings, right):
    s += examples + passage + sgl.select("ending", endings)
    return s["ending"]


async def plain(api: Api, item: Item) -> str:
    endings: list[str] = item["endings"]
    return endings[await api.choose(item["examples"] + item["passage"], endings)]


CLAIM = Claim(
    name="hellaswag",
    title="Select among four endings (HellaSwag's form)",
    paper="Fig. 5 and 6, HellaSwag: 20-shot, select, two-level sharing",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: answer == item["right"],
    speedup=4.0,
)
