"""Measure: a claim's items run on one side, once, for throughput or for latency."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from sglang.backend.base import Backend

from benchmark.harness.claim import Answer, Api, Claim, Item

MODES = ("throughput", "latency")
"""All items at once (``Claim.concurrency``); one after the other."""


@dataclass(frozen=True)
class Outcome:
    """One run of some items.

    Attributes:
        seconds: from the first begun to the last answered.
        latencies: seconds of each item, where they ran one after the other.
        answers: in the order of the items.
        prompt_tokens, cached_tokens, completion_tokens: as the side counts them; cached and new
            prompt tokens of every call. None where it does not tell.
    """

    seconds: float
    answers: list[Answer]
    latencies: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None

    def rate(self) -> float:
        """Items a second."""
        return len(self.answers) / self.seconds

    def plain(self) -> dict[str, Any]:
        """Plain data for a line of JSON."""
        return asdict(self)


def accuracy(claim: Claim, items: Sequence[Item], answers: Sequence[Answer]) -> float | None:
    """Share of right answers; None where there are no right ones."""
    found = [claim.right(item, answer) for item, answer in zip(items, answers, strict=True)]
    told = [value for value in found if value is not None]
    return sum(told) / len(told) if told else None


def run_program(
    claim: Claim, backend: Backend, items: Sequence[Item], mode: str, **params: Any
) -> Outcome:
    """Run the claim's program. ``params`` are generation parameters for all of it."""
    params = {"temperature": 0, **params}
    if mode == "latency":
        states, latencies = [], []
        for item in items:
            began = time.perf_counter()
            states.append(claim.program.run(backend=backend, **item, **params))
            latencies.append(time.perf_counter() - began)
        seconds = sum(latencies)
    else:
        began, latencies = time.perf_counter(), []
        states = list(
            claim.program.run_batch(items, backend=backend, num_threads=claim.concurrency, **params)
        )
        seconds = time.perf_counter() - began
    used = [state.usage for state in states]
    return Outcome(
        seconds,
        [state.ret_value for state in states],
        latencies,
        sum(usage.prompt_tokens for usage in used),
        sum(usage.cached_tokens for usage in used),
        sum(usage.completion_tokens for usage in used),
    )


def run_plain(claim: Claim, api: Api, items: Sequence[Item], mode: str) -> Outcome:
    """The same in plain client code. An ``api`` with a ``close`` is closed, since it may hold
    resources of the event loop."""

    async def whole() -> Outcome:
        try:
            return await _run_plain(claim, api, items, mode)
        finally:
            if close := getattr(api, "close", None):
                await close()

    return asyncio.run(whole())


async def _run_plain(claim: Claim, api: Api, items: Sequence[Item], mode: str) -> Outcome:
    began = time.perf_counter()
    if mode == "latency":
        answers, latencies = [], []
        for item in items:
            answer, seconds = await _timed(partial(claim.plain, api, item))
            answers.append(answer)
            latencies.append(seconds)
    else:
        slots, latencies = asyncio.Semaphore(claim.concurrency), []

        async def one(item: Item) -> Answer:
            async with slots:
                return await claim.plain(api, item)

        answers = list(await asyncio.gather(*map(one, items)))
    return Outcome(time.perf_counter() - began, answers, latencies)


async def _timed(call: Callable[[], Awaitable[Answer]]) -> tuple[Answer, float]:
    began = time.perf_counter()
    answer = await call()
    return answer, time.perf_counter() - began
