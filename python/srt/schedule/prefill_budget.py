"""Budgets: how many prompt tokens and how many decodes the next pass may compute.

A budget is a pure function of a ``EngineLoad``, chosen by word (``BUDGETS``, ``--prefill-budget``):

    fixed      at most ``chunked_prefill_size`` prompt tokens a pass, and every decode
    sarathi    that many tokens together: decodes first, prompts in the rest (Sarathi-Serve)
    throttle   gLLM's token throttling: prompt tokens by waiting tokens and free memory, decodes
               shared among the stages (sections 3.1 and 3.2, equations 1 to 4)
    balance    throttle in predicted milliseconds: passes of equal time, memory-bound ones filled up
    turns      prompts alone until memory is full, then decodes alone: for batch jobs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.srt.schedule.stage_costs import StageCost

REFILL = 0.5  # free share of the memory at which ``turns`` goes back to prompts


class PrefillBudget(NamedTuple):
    """Budget of a pass that is left for prompts.

    Attributes:
        tokens: number of prompt tokens.
        ms: milliseconds, as predicted by ``cost``; without ``cost`` only ``tokens`` limits.
        least: milliseconds; a smaller remaining budget counts as 0.
    """

    tokens: int
    ms: float = math.inf
    cost: StageCost | None = None
    least: float = 0.0

    @property
    def open(self) -> bool:
        """Whether anything is left."""
        return self.tokens > 0 and self.ms > 0

    def chunk(self, start: int, work: int) -> int:
        """Return the size of the next chunk of a prompt with ``work`` tokens after ``start``."""
        most = min(work, self.tokens)
        if self.cost is None or most <= 0 or self.ms <= 0:
            return most if self.ms > 0 else 0
        count = max(self.cost.tokens(start, self.ms), 1)
        if self.cost.chunk(start + count, work - count) < self.least:
            return most  # a rest too small for a pass of its own
        return min(count, most)

    def after(self, start: int, count: int) -> PrefillBudget:
        """Return the budget left after a chunk of ``count`` tokens from position ``start``."""
        tokens = self.tokens - count
        if self.cost is None:
            return PrefillBudget(tokens)
        ms = self.ms - self.cost.chunk(start, count)
        return self._replace(tokens=tokens, ms=ms if ms >= self.least else 0.0)


@dataclass(frozen=True, slots=True)
class Throttle:
    """gLLM's parameters (section 4.1).

    Attributes:
        iterations: T, number of passes in which all waiting prompt tokens should be computed.
        most, least: MaxP and MinP, prompt tokens a pass.
        threshold: share of the KV memory; no prompts are computed while less is free.
    """

    iterations: int = 8
    most: int = 2048
    least: int = 32
    threshold: float = 0.05


class ReadyRequest(NamedTuple):
    """A request that may generate a token now. Sorts by its last turn, the oldest first.

    Attributes:
        turn: number of the last pass with a row of the request.
        tokens: length of the request's context.
    """

    turn: int
    arrival: int
    id: int
    tokens: int


class EngineLoad(NamedTuple):
    """Input of a budget function.

    Attributes:
        stages: number of pipeline stages.
        limits: parameters; ``limits.most`` is ``chunked_prefill_size``.
        ready: requests that may generate a token now, the oldest last turn first.
        decoding: number of requests that generate, those with a sample in flight included (#RD).
        decoding_tokens: sum of the lengths of their contexts.
        prompts: (start, tokens to compute) of running and waiting prompts, cached tokens excluded;
            prompts beyond ``limits.iterations * limits.most`` tokens may be missing.
        free: share of the KV memory that is free or evictable, in [0, 1].
        cost: cost of the slowest stage; None before enough passes were measured.
        filling: for ``turns``: whether the previous pass computed prompts.
    """

    stages: int
    limits: Throttle
    ready: Sequence[ReadyRequest] = ()
    decoding: int = 0
    decoding_tokens: int = 0
    prompts: Sequence[tuple[int, int]] = ()
    free: float = 1.0
    cost: StageCost | None = None
    filling: bool = True

    @property
    def waiting(self) -> int:
        """Number of prompt tokens to compute (#WP)."""
        return sum(count for _, count in self.prompts)


@dataclass(frozen=True, slots=True)
class Grant:
    """Work that the next pass may do: a prompt budget, and the first ``decodes`` ready requests."""

    prefill: PrefillBudget
    decodes: int
    filling: bool = field(default=True)


Budget = Callable[[EngineLoad], Grant]


def by_both(waiting: int, free: float, limits: Throttle) -> int:
    """Return the prompt tokens of gLLM's equation 3, rounded down; 0 if less memory than the
    threshold is free. As in the paper, ``least`` is the floor even if memory would allow less."""
    if free < limits.threshold:
        return 0
    return int(max(min(waiting / limits.iterations, limits.most * _usable(free, limits)),
                   limits.least))  # fmt: skip


def by_stages(decoding: int, stages: int) -> int:
    """Return the number of decodes a pass by gLLM's equation 4, rounded up."""
    return -(-decoding // stages)


def _usable(free: float, limits: Throttle) -> float:
    """Return the free share of the memory above the threshold, in [0, 1]."""
    return (free - limits.threshold) / max(1 - limits.threshold, 1e-9)


def fixed(load: EngineLoad) -> Grant:
    """Return the same budget for every pass."""
    return Grant(PrefillBudget(load.limits.most), len(load.ready))


def sarathi(load: EngineLoad) -> Grant:
    """Return one budget of tokens for decodes and prompts."""
    decodes = min(len(load.ready), load.limits.most)
    return Grant(PrefillBudget(load.limits.most - decodes), decodes)


def throttle(load: EngineLoad) -> Grant:
    """Return gLLM's budget, equations 3 and 4."""
    prefill = min(by_both(load.waiting, load.free, load.limits), load.limits.most)
    return Grant(PrefillBudget(prefill), by_stages(load.decoding, load.stages))


def balance(load: EngineLoad) -> Grant:
    """Return a budget of predicted milliseconds; the budget of ``throttle`` until costs are known.

    Prompts: equation 3 with milliseconds in place of tokens, but at least the tokens up to the knee
    of the pass. Decodes are divided by cost: each pass takes the requests of the oldest last turn
    until it has 1 / stages of the summed cost.
    """
    cost, limits = load.cost, load.limits
    if cost is None or not cost.token:
        return throttle(load)
    each = cost.context / cost.token  # cost of a context token, in units of a computed token
    share, taken, count = (load.decoding + each * load.decoding_tokens) / load.stages, 0.0, 0
    for item in load.ready:
        if taken >= share * (1 - 1e-9):
            break
        taken += 1 + each * item.tokens
        count += 1
    if load.free < limits.threshold:
        return Grant(PrefillBudget(0), count)
    work = sum(cost.chunk(start, rest) for start, rest in load.prompts)
    least = cost.chunk(0, limits.least)
    most = cost.chunk(0, limits.most) * _usable(load.free, limits)
    slack = cost.knee - cost.token * count
    ms = max(min(work / limits.iterations, most), slack, least)
    return Grant(PrefillBudget(limits.most, ms, cost, least), count)


def turns(load: EngineLoad) -> Grant:
    """Return prompts alone while memory lasts, then decodes alone until half of it is free."""
    filling = load.filling
    if filling:
        filling = bool(load.prompts) and load.free >= load.limits.threshold
    else:
        filling = bool(load.prompts) and (not load.decoding or load.free >= REFILL)
    if filling:
        return Grant(PrefillBudget(load.limits.most), 0, True)
    return Grant(PrefillBudget(0), by_stages(load.decoding, load.stages), False)


BUDGETS: dict[str, Budget] = {
    "fixed": fixed,
    "sarathi": sarathi,
    "throttle": throttle,
    "balance": balance,
    "turns": turns,
}
