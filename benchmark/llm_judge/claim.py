"""LLM judge: an essay by branch, solve and merge. Each dimension is judged and scored in a branch
of its own; the judgments come together, and a summary and a grade read them all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import sglang as sgl

from benchmark.harness import data
from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.numbered import numbered

INTRO = (
    "You judge essays as an experienced teacher does: fairly, in plain words, and with an example "
    "from the essay for what you say.\n\nEssay:\n"
)
DIMENSIONS = {
    "content": "Is what it says right, and does it say enough?",
    "structure": "Does one thought lead to the next, from a beginning to an end?",
    "argument": "Are its claims given reasons, and do the reasons hold?",
    "language": "Is it clear, and are its words well chosen?",
    "correctness": "Are spelling, grammar and punctuation right?",
}
SHORT = 600  # letters of an essay


def items(scale: Scale, seed: int) -> list[Item]:
    most, tokens = (None, 64) if scale.long else (SHORT, 12)
    return [
        {"essay": label + essay[:most], "tokens": tokens}
        for label, essay in numbered(data.records("essays.jsonl"), scale.items, seed)
    ]


def ask(dimension: str) -> str:
    return f"Judge the {dimension} of the essay. {DIMENSIONS[dimension]}\nJudgment:"


def merged(judgments: Sequence[str], scores: Sequence[str]) -> str:
    lines = [
        f"{dimension}:{judgment} Score:{score}\n"
        for dimension, judgment, score in zip(DIMENSIONS, judgments, scores)
    ]
    return "Judgments of the essay:\n" + "".join(lines) + "In summary:"


SCORE, GRADE = "\nScore (1 to 10):", "\nGrade (A to D):"


@sgl.function
def program(s, essay, tokens):
    s += INTRO + essay + "\n\n"
    with s.fork(len(DIMENSIONS)) as forks:
        for fork, dimension in zip(forks, DIMENSIONS):
            fork += ask(dimension) + sgl.gen("judgment", tokens, stop="\n")
            fork += SCORE + sgl.gen("score", 2, stop="\n")
    s += merged(s["judgment"], s["score"]) + sgl.gen("summary", tokens, stop="\n")
    s += GRADE + sgl.gen("grade", 2, stop="\n")
    return {"scores": s["score"], "summary": s["summary"], "grade": s["grade"]}


async def plain(api: Api, item: Item) -> Mapping[str, object]:
    prompt = INTRO + item["essay"] + "\n\n"

    async def judge(dimension: str) -> tuple[str, str]:
        asked = prompt + ask(dimension)
        [judgment] = await api.complete(asked, item["tokens"], stop=["\n"])
        [score] = await api.complete(asked + judgment + SCORE, 2, stop=["\n"])
        return judgment, score

    judgments, scores = zip(*await asyncio.gather(*map(judge, DIMENSIONS)))
    prompt += merged(judgments, scores)
    [summary] = await api.complete(prompt, item["tokens"], stop=["\n"])
    [grade] = await api.complete(prompt + summary + GRADE, 2, stop=["\n"])
    return {"scores": list(scores), "summary": summary, "grade": grade}


CLAIM = Claim(
    name="llm_judge",
    title="LLM judge (branch, solve, merge)",
    paper="Fig. 5, LLM Judge",
    items=items,
    program=program,
    plain=plain,
    speedup=2.0,
)
