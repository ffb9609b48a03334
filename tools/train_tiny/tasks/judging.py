"""Scores by a stated rule, the best of numbered options, and merging of branches.

These are the joining steps of programs that fork: each branch writes something, then one call
judges or merges what the branches wrote.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.train_tiny import words as w
from tools.train_tiny.sample import Job, Turn
from tools.train_tiny.tasks.lists import bulleted, numbered
from tools.train_tiny.words import Words

GRADES = ("perfect", "excellent", "good", "fair", "weak", "poor", "awful")
DIMENSIONS = ("clarity", "originality", "evidence", "style", "grammar", "structure", "humor")
STRONG = ("strong", "clear", "great", "good", "excellent")
FEEBLE = ("weak", "poor", "bad", "missing", "awful")


def grade(rng: random.Random, words: Words, size: int) -> Job:
    """A grade word turned into points by the scale in the prompt."""
    del size
    count = rng.randint(2, 4)
    names = rng.sample(GRADES, count)
    points = sorted(rng.sample(range(1, 11), count), reverse=True)
    scale = ", ".join(f"{n} = {p}" for n, p in zip(names, points, strict=True))
    index = rng.randrange(count)
    subject = rng.choice(("answer", "essay", "story", "plan", words.pick(rng, w.OBJECTS)))
    text = f"Scale: {scale}.\nThe {subject} is {names[index]}."
    question = rng.choice(("What is the score?", "Give the score.", "Score from 1 to 10?"))
    job_turn = Turn(f"{text}\n{question}", str(points[index]))
    return Job("judge_score", (job_turn,), raw=f"{text}\nScore:")


def dimension(rng: random.Random, words: Words, size: int) -> Job:
    """Judge an essay on one dimension at a time: good or bad."""
    del size
    chosen = rng.sample(DIMENSIONS, rng.randint(2, 4))
    verdicts = {name: rng.random() < 0.5 for name in chosen}
    notes = " ".join(
        f"The {name} is {rng.choice(STRONG if good else FEEBLE)}."
        for name, good in verdicts.items()
    )
    topic = words.pick(rng, w.PLACES + w.ANIMALS)
    context = f"Notes on an essay about the {topic}: {notes}"
    asked = rng.sample(chosen, rng.randint(1, len(chosen)))
    wording = rng.choice(("Is the {} good or bad?", "Judge the {}: good or bad?"))
    turns = tuple(Turn(wording.format(n), "good" if verdicts[n] else "bad") for n in asked)
    return Job("judge_dimension", turns, context=context)


def keywords(rng: random.Random, words: Words, size: int) -> Job:
    """Good if the text mentions what it should."""
    del size
    items = words.sample(rng, w.OBJECTS, 4)
    text = f"The {items[0]} stood next to the {items[1]} and a {items[2]}."
    good = rng.random() < 0.5
    wanted = rng.choice(items[:3]) if good else items[3]
    question = f"An answer is good if it mentions the {wanted}, else it is bad. Good or bad?"
    return Job(
        "judge_mention", (Turn(question, "good" if good else "bad"),), context=f"Answer: {text}"
    )


def best(rng: random.Random, words: Words, size: int) -> Job:
    """The number of the option with the highest score, or of the one that mentions something."""
    del size
    count = rng.randint(2, 4)
    items = [words.pick(rng, w.ADJECTIVES) + " " + t for t in words.things(rng, count)]
    if rng.random() < 0.5:
        scores = rng.sample(range(1, 11), count)
        shown = [f"{item} (score {s})" for item, s in zip(items, scores, strict=True)]
        right = scores.index(max(scores))
        question = rng.choice(
            ("Which option has the highest score?", "Which is best?", "Pick the best option.")
        )
    else:
        shown, right = items, rng.randrange(count)
        question = f"Which option mentions the {items[right].split()[1]}?"
    text = f"{numbered(shown)}\n{question}"
    tail = rng.choice(("", " Answer with the number."))
    return Job("judge_best", (Turn(text + tail, str(right + 1)),))


def merge(rng: random.Random, words: Words, size: int) -> Job:
    """Points of two or three branches put into one list."""
    del size
    pool = words.things(rng, 6)
    items = [f"{words.pick(rng, w.VERBS)} the {t}" if rng.random() < 0.6 else t for t in pool]
    items = items[: rng.randint(2, 5)]
    cut = rng.randint(1, len(items) - 1)
    mark = rng.choice((bulleted, numbered))
    first, second = rng.choice(
        (("First list:", "Second list:"), ("Part 1:", "Part 2:"), ("Points A:", "Points B:"))
    )
    text = f"{first}\n{mark(items[:cut])}\n{second}\n{mark(items[cut:])}"
    question = rng.choice(("Merge into one numbered list.", "Combine both into one numbered list."))
    return Job("judge_merge", (Turn(question, numbered(items)),), context=text)


GENERATORS: dict[str, Callable[[random.Random, Words, int], Job]] = {
    "judge_score": grade,
    "judge_dimension": dimension,
    "judge_mention": keywords,
    "judge_best": best,
    "judge_merge": merge,
}
