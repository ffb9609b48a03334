"""Conversation: a chat of some turns, as a program and as client code, and turns to say in it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import sglang as sgl

from benchmark.harness.claim import Api, Item
from benchmark.harness.facts import facts, passage

TOKENS_A_SENTENCE = 9.0
"""Of ``facts`` and ``filler``, in a byte-level BPE of English with 32,000 entries."""


@sgl.function
def program(s, turns, limits, wanted=()):
    for number, (text, limit) in enumerate(zip(turns, limits)):
        s += sgl.user(text)
        s += sgl.assistant(sgl.gen(f"answer{number}", max_tokens=limit))
    return [s[f"answer{number}"] for number in range(len(turns))]


async def plain(api: Api, item: Item) -> list[str]:
    messages: list[dict[str, Any]] = []
    answers = []
    for text, limit in zip(item["turns"], item["limits"]):
        messages.append({"role": "user", "content": text})
        answers.append(await api.chat(messages, limit))
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def right(item: Item, answers: Sequence[str]) -> bool:
    """Whether every turn was answered rightly."""
    return all(
        answer.strip().rstrip(".") == wanted for answer, wanted in zip(answers, item["wanted"])
    )


def chat(draw: random.Random, turns: int, tokens: range, limits: range) -> dict[str, Any]:
    """Arguments of ``program``: each turn is a text that ends in a question about it. Its number of
    tokens is sampled from ``tokens``, the most of its answer from ``limits``."""
    made = [_turn(draw, round(draw.choice(tokens) / TOKENS_A_SENTENCE)) for _ in range(turns)]
    return {
        "turns": [text for text, _ in made],
        "limits": [draw.choice(limits) for _ in made],
        "wanted": [answer for _, answer in made],
    }


def _turn(draw: random.Random, sentences: int) -> tuple[str, str]:
    """A text with its question, ``sentences`` in all, and the answer: a number, since of earlier
    turns the embedded model mixes up names and things, but numbers hardly ever."""
    known = facts(draw, max(20, sentences))
    asked = next((fact for fact in known if fact.answer.isdigit()), known[0])
    told = [asked, *(fact for fact in known if fact is not asked)][: max(1, sentences // 2)]
    return f"{passage(draw, told, max(1, sentences - 1))}\n{asked.question}", asked.answer
