"""Choices scored as wholes: one of several texts, sampled by its probability after the prompt.

Sampling token by token decides by a choice's first token, before the model has read the rest: an
"A" may be sampled because "Above Average" begins with it. In this module each choice's
log-probability is the sum over all of its tokens, and the choice is sampled from
softmax(sums / temperature). Every token of every choice is computed.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from sglang.ir.sampling import CHOICE, LOGITS, SamplingParams, names_of
from sglang.srt.core.messages import Event, PromptChunk, TopPairs
from sglang.srt.core.request_stats import RequestStats

AT_ONCE = 32  # simultaneous choices of one prompt in the engine


@dataclass(slots=True)
class ScoredChoice:
    """One text and its tokens. Once it is scored, the other fields have an entry for each token."""

    text: str
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopPairs] = field(default_factory=list)
    probes: list[list[float]] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def total(self) -> float:
        """Log-probability of the text."""
        return math.fsum(self.logprobs)

    def take(self, event: PromptChunk) -> None:
        """Append the log-probabilities of the next tokens."""
        self.logprobs += [value or 0.0 for value in event.logprobs]
        self.tops += [top or [] for top in event.tops]
        self.probes += [probe or [] for probe in event.probes]


async def score(
    choices: Sequence[ScoredChoice],
    read: Callable[[ScoredChoice], AsyncGenerator[Event, None]],
) -> None:
    """Score all choices. ``read``: scores one choice and yields its events. Raises the errors of
    ``read``."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(choice: ScoredChoice) -> None:
        async with slots, aclosing(read(choice)) as events:
            async for event in events:
                if isinstance(event, PromptChunk):
                    choice.take(event)

    tasks = [asyncio.ensure_future(one(choice)) for choice in choices]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def pick(totals: Sequence[float], sampling: SamplingParams) -> int:
    """Return the index of the sampled choice. Greedy sampling takes the best one, on a tie the
    first."""
    if sampling.greedy:
        return max(range(len(totals)), key=totals.__getitem__)
    best = max(totals)
    weights = [math.exp((total - best) / sampling.temperature) for total in totals]
    point = random.Random(sampling.seed).random() * math.fsum(weights)
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    return max(range(len(totals)), key=totals.__getitem__)  # rounding


def verify_whole(sampling: SamplingParams) -> None:
    """Raise ValueError if a parameter is set that has no meaning for whole choices."""
    plain = SamplingParams()
    honoured = {"temperature", "seed", "top_k" if sampling.greedy else ""}
    for name in (*names_of(CHOICE), *names_of(LOGITS), "min_new_tokens"):
        if name in honoured:
            continue
        if getattr(sampling, name) != getattr(plain, name):
            raise ValueError(
                f"{name} works on tokens and cannot be honoured where choices are scored as "
                "wholes; remove it, or choices_scoring."
            )
