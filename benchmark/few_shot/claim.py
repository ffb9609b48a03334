"""Few-shot classification as MMLU asks it: five examples of a subject, a question with four
options, one token. All questions of a subject share its examples."""

from __future__ import annotations

import random

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale

SUBJECTS = ("prices", "ages", "distances", "weights")
SHOTS = 5
LETTERS = "ABCD"


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    headers = {subject: _header(subject, draw, scale.long) for subject in SUBJECTS}
    found: list[Item] = []
    for number in range(scale.items):
        subject = SUBJECTS[number * len(SUBJECTS) // scale.items]
        question, letter = _question(subject, draw, scale.long)
        found.append({"examples": headers[subject], "question": question, "letter": letter})
    return found


def _header(subject: str, draw: random.Random, long: bool) -> str:
    shots = [_question(subject, draw, long) for _ in range(SHOTS)]
    text = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    return text + "".join(f"{question} {letter}\n\n" for question, letter in shots)


def _question(subject: str, draw: random.Random, long: bool) -> tuple[str, str]:
    facts = [(name, draw.randint(10, 99)) for name in draw.sample(NAMES, 12 if long else 4)]
    asked, value = draw.choice(facts)
    options = draw.sample([n for n in range(10, 100) if n != value], 3)
    place = draw.randrange(4)
    options.insert(place, value)
    text = " ".join(f"Of all {subject} that were noted, {name} has {n}." for name, n in facts)
    text += f" What does {asked} have?\n"
    text += "".join(f"{letter}. {option}\n" for letter, option in zip(LETTERS, options))
    return text + "Answer:", LETTERS[place]


NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Lea",
         "Max", "Nina", "Otto", "Pia")  # fmt: skip


@sgl.function
def program(s, examples, question, letter):
    s += examples + question + sgl.gen("answer", max_tokens=1)
    return s["answer"]


async def plain(api: Api, item: Item) -> str:
    [answer] = await api.complete(item["examples"] + item["question"], max_tokens=1)
    return answer


CLAIM = Claim(
    name="few_shot",
    title="Few-shot classification (MMLU's form)",
    paper="Fig. 5, MMLU",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: answer.strip() == item["letter"],
    speedup=3.0,
)
