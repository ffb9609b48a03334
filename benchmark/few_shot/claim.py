"""Few-shot classification in MMLU's form: five examples of a subject, a question with four possible
answers, one token. All questions of a subject share its examples.

The questions are generated, and of a kind that the embedded model can answer: a grade word stands
for one of four digits by the subject's own scale.
"""

from __future__ import annotations

import random

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.facts import facts, passage

SUBJECTS = ("essay", "story", "plan", "answer")
SHOTS = 5
GRADES = ("perfect", "excellent", "good", "fair", "weak", "poor", "awful")
SENTENCES = {False: 3, True: 15}
"""Of a question, with those that do not matter. Five long ones are 600 to 900 tokens."""


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    subjects = SUBJECTS[: max(1, min(len(SUBJECTS), scale.items // 4))]
    sheets = [_subject(name, draw, scale.long) for name in subjects]
    found: list[Item] = []
    for number in range(scale.items):
        at = number * len(subjects) // scale.items
        header, points = sheets[at]
        question, score = _question(subjects[at], points, draw, scale.long)
        found.append({"examples": header, "question": question, "score": score})
    return found


def _subject(name: str, draw: random.Random, long: bool) -> tuple[str, dict[str, int]]:
    """Common beginning of a subject's questions, and its points by grade."""
    scores = sorted(draw.sample(range(1, 10), 4), reverse=True)
    points = dict(zip(sorted(draw.sample(GRADES, 4), key=GRADES.index), scores))
    text = "Scale: " + ", ".join(f"{grade} = {n}" for grade, n in points.items()) + ".\n"
    for _ in range(SHOTS):
        question, score = _question(name, points, draw, long)
        text += f"{question}{score}\n\n"
    return text, points


def _question(
    name: str, points: dict[str, int], draw: random.Random, long: bool
) -> tuple[str, str]:
    """A question and its score. The question ends in a space, so that the answer is one token for
    the embedded model's tokenizer."""
    grade = draw.choice(list(points))
    others = SENTENCES[long] - 1
    text = passage(draw, facts(draw, others // 2), others)
    return f"{text} The {name} is {grade}.\nScore: ", str(points[grade])


@sgl.function
def program(s, examples, question, score):
    s += examples + question + sgl.gen("answer", max_tokens=1)
    return s["answer"]


async def plain(api: Api, item: Item) -> str:
    [answer] = await api.complete(item["examples"] + item["question"], max_tokens=1)
    return answer


CLAIM = Claim(
    name="few_shot",
    title="Few-shot classification (MMLU's form)",
    paper="Fig. 5 and 6, MMLU: 5-shot, one token decoded",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: answer.strip() == item["score"],
    speedup=3.0,
)
