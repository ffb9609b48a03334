"""Line retrieval: which number stands in a line of a long document. Many questions are about one
document, whose four pieces are encoded side by side: each sees what stands before them all, and
itself.

There is no such thing in OpenAI's API, so plain client code sends the pieces as one text. That is
another computation, so answers may differ; they are checked against the document, and not with each
other.
"""

from __future__ import annotations

import random
import re

import sglang as sgl

from benchmark.harness import data
from benchmark.harness.claim import Api, Claim, Item, Scale

PIECES = 4
QUESTIONS = 16  # about each document
INTRO = "Below is a record of lines. Remember the REGISTER_CONTENT of each.\n"


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    lines = 200 if scale.long else 8
    found: list[Item] = []
    for place in range(scale.items):
        if place % QUESTIONS == 0:
            words = data.lines("words.txt")
            names = ["-".join(pair) for pair in zip(*(draw.sample(words, lines) for _ in "ab"))]
            numbers = [draw.randint(10000, 99999) for _ in names]
            pieces = _pieces([
                f"line {name}: REGISTER_CONTENT is <{number}>\n"
                for name, number in zip(names, numbers)
            ])  # fmt: skip
        at = draw.randrange(lines)
        found.append({"pieces": pieces, "line": names[at], "number": numbers[at]})
    return found


def _pieces(lines: list[str]) -> list[str]:
    size = len(lines) // PIECES
    return ["".join(lines[at * size : (at + 1) * size]) for at in range(PIECES)]


def ask(line: str) -> str:
    return f"What is the REGISTER_CONTENT in line {line}?\nAnswer:"


@sgl.function
def program(s, pieces, line, number):
    s += INTRO
    forks = s.fork(len(pieces))
    forks += pieces
    forks.join("concate_and_append")
    s += ask(line) + sgl.gen("answer", 8, stop="\n")
    return s["answer"]


async def plain(api: Api, item: Item) -> str:
    prompt = INTRO + "".join(item["pieces"]) + ask(item["line"])
    [answer] = await api.complete(prompt, 8, stop=["\n"])
    return answer


CLAIM = Claim(
    name="line_retrieval",
    title="Line retrieval (parallel encoding)",
    paper="section 2, fork and join; not in Fig. 5",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: re.findall(r"\d+", answer)[:1] == [str(item["number"])],
)
