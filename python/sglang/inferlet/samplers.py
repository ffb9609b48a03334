"""Samplers: how a program takes a token from a distribution, and when a text ends."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeAlias

from sglang.inferlet.dist import Dist


class GrowingText(Protocol):
    """A context, as conditions of its end see it."""

    tokens: list[int]

    async def text(self, start: int = 0) -> str: ...


Sampler: TypeAlias = Callable[[Dist], int]
Stop: TypeAlias = Callable[[GrowingText, int], Awaitable[bool]]


class Greedy:
    """The most likely token."""

    def __call__(self, dist: Dist) -> int:
        return dist.max_index()


class Nucleus:
    """A token of the ``top_k`` most likely whose probabilities sum to ``top_p``, at a temperature.

    ``seed``: of the random numbers; None: another each time.
    """

    def __init__(
        self, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int | None = None
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; it must be above 0. Or use Greedy()")
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self._random = random.Random(seed)

    def __call__(self, dist: Dist) -> int:
        entries = dist.top(self.top_k or len(dist))
        best = entries[0][1]
        weights = [math.exp((value - best) / self.temperature) for _, value in entries]
        limit, total, kept = self.top_p * sum(weights), 0.0, 0
        while kept < len(weights) and total < limit:
            total += weights[kept]
            kept += 1
        kept = max(kept, 1)
        chosen = self._random.choices(range(kept), weights[:kept])[0]
        return entries[chosen][0]


def at_text(*stops: str) -> Stop:
    """Stop once the new text has any of these."""

    async def found(context: GrowingText, start: int) -> bool:
        text = await context.text(start)
        return any(stop in text for stop in stops)

    return found


def at_tokens(ids: Iterable[int]) -> Stop:
    """Stop after any of these tokens."""
    ends = frozenset(ids)

    async def found(context: GrowingText, start: int) -> bool:
        return context.tokens[-1] in ends

    return found


def either(*stops: Stop) -> Stop:
    """Stop where any of these does."""

    async def found(context: GrowingText, start: int) -> bool:
        return any([await stop(context, start) for stop in stops])

    return found
