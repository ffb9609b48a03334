"""Options to select among: texts that begin alike, as names, codes or labels do."""

from __future__ import annotations

import random

from benchmark.harness.facts import filler

WORDS = (
    "red", "green", "blue", "amber", "silver", "river", "stone", "house", "cloud", "garden",
    "window", "music", "paper", "winter", "summer", "north", "south", "harbour", "bridge",
    "station",
)  # fmt: skip
KINDS = ("words", "numbers")


def options(kind: str, count: int, seed: int) -> list[str]:
    """``count`` different texts: three words each, or numbers."""
    draw = random.Random(seed)
    if kind == "numbers":
        return [f" {number}" for number in draw.sample(range(10 * count), count)]
    found: dict[str, None] = {}
    while len(found) < count:
        found[" " + " ".join(draw.choices(WORDS, k=3))] = None
    return list(found)


def prompt(sentences: int, seed: int) -> str:
    """A text that the options go on from."""
    draw = random.Random(seed)
    text = " ".join(filler(draw) for _ in range(sentences))
    return f"{text}\nQuestion: Which of them fits best?\nAnswer:"
