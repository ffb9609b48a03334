"""Generators of jobs with checkable answers, and the mixture they are sampled from."""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.train_tiny.sample import Job, Sample, write_chat, write_raw
from tools.train_tiny.tasks import (
    arithmetic,
    choices,
    dialogue,
    extract,
    judging,
    lists,
    lookup,
    patterns,
)
from tools.train_tiny.words import Words

Generator = Callable[[random.Random, Words, int], Job]

GENERATORS: dict[str, Generator] = {
    name: generator
    for module in (lookup, extract, patterns, choices, arithmetic, lists, judging, dialogue)
    for name, generator in module.GENERATORS.items()
}

LONG_TASKS = ("lookup_line", "lookup_pairs", "facts", "facts_passages")
"""Jobs whose context can be made as long as wanted."""

MIXTURE: dict[str, float] = {
    "lookup_line": 5,
    "lookup_pairs": 7,
    "facts": 8,
    "facts_passages": 5,
    "extract_json": 9,
    "extract_indented": 2,
    "extract_lines": 4,
    "pattern_sentiment": 0.8,
    "pattern_named": 6,
    "pattern_shots": 7,
    "pattern_labels": 2.5,
    "choice_numbers": 5,
    "choice_yes_no": 4,
    "choice_oldest": 13,
    "choice_letter": 10,
    "arithmetic_direct": 5,
    "arithmetic_story": 2,
    "arithmetic_tool": 2,
    "list_category": 2,
    "list_items": 4,
    "list_summary": 1.5,
    "list_tips": 1.2,
    "judge_score": 1.6,
    "judge_dimension": 1,
    "judge_mention": 2,
    "judge_best": 2,
    "judge_merge": 5,
    "dialogue_memory": 2.5,
    "dialogue_sums": 2,
    "dialogue_persona": 1.3,
    "dialogue_style": 4,
    "dialogue_program": 7,
    "dialogue_greeting": 0.3,
}
"""How often each job is drawn; those that were learnt late in trial runs have more."""


def write(job: Job, rng: random.Random, form: str | None = None) -> Sample:
    """Write a job in the wanted form, or in either."""
    form = form or rng.choice(("chat", "raw"))
    return write_chat(job, rng) if form == "chat" else write_raw(job, rng)


def draw(rng: random.Random, words: Words, size: int) -> Sample:
    """A sample from the mixture."""
    name = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
    return write(GENERATORS[name](rng, words, size), rng)


def draw_long(rng: random.Random, words: Words, size: int) -> Sample:
    """A sample whose context is about `size` tokens long."""
    return write(GENERATORS[rng.choice(LONG_TASKS)](rng, words, size), rng)
