"""Capacity: requests that may join while a latency-sensitive one runs (Parrot, section 5.4).

Parrot holds the tokens in an engine below a number that the strictest request sets. What a client
feels is the time of a pass, so that is predicted here: a request joins as long as a pass in which
every running request generates one token stays within the strictest target.

A task group counts as one: only the group's end matters, so its members do not hold each other
back. Other targets hold them back one by one, so that a group may be split.

A request that is held waits until the latency-sensitive ones have ended, at the latest. Those that
may join pass it, at most ``max_overtakes`` of them. Then nothing passes it, so it is never starved.
"""

from __future__ import annotations

import math

from sglang.srt.core.call_hints import CallHint
from sglang.srt.schedule.prefill_budget import PrefillBudget
from sglang.srt.schedule.stage_costs import PassWork, StageCost

LEAST = 32  # prompt tokens that a pass may compute in any case
ALONE = ("", -1)  # group of the requests that are in none


class Capacity:
    """Time of the passes to come, as requests join.

    Args:
        cost: of the slowest stage.
        stages: of the pipeline; a token passes them all.
        default_ms: target of a latency-sensitive request that names none.
    """

    def __init__(self, cost: StageCost, stages: int, default_ms: float) -> None:
        self._cost, self._stages, self._default_ms = cost, stages, default_ms
        self._requests = self._tokens = 0
        self._strictest: list[tuple[float, tuple[str, int]]] = []  # two targets, of two groups

    def join(self, hint: CallHint | None, tokens: int) -> None:
        """Count a running request, whose context has ``tokens`` tokens."""
        self._requests += 1
        self._tokens += tokens
        if hint is not None and (hint.tpot_ms or hint.kind == "latency"):
            group, target = group_of(hint), hint.tpot_ms or self._default_ms
            targets = {key: ms for ms, key in self._strictest}
            targets[group] = min(target, targets.get(group, target))
            self._strictest = sorted((ms, key) for key, ms in targets.items())[:2]

    def admits(self, hint: CallHint | None, tokens: int) -> bool:
        """Whether one more request leaves the passes within the targets of all that are not in its
        task group."""
        group = group_of(hint)
        others = (ms for ms, key in self._strictest if key == ALONE or key != group)
        return self._pass_ms(1, tokens) <= next(others, math.inf)

    def within(self, budget: PrefillBudget) -> PrefillBudget:
        """Return the budget of prompts, cut to what the targets of requests in no group leave of a
        pass."""
        alone = [ms for ms, key in self._strictest if key == ALONE]
        if not alone:
            return budget
        left = (alone[0] - self._pass_ms(0, 0)) / self._stages
        ms = max(left, self._cost.chunk(0, LEAST), 1e-3)
        return budget._replace(ms=min(ms, budget.ms), cost=self._cost)

    def _pass_ms(self, requests: int, tokens: int) -> float:
        context = self._tokens + tokens
        work = PassWork(self._requests + requests, context, 2 * context)
        return self._stages * self._cost.at(work)


def group_of(hint: CallHint | None) -> tuple[str, int]:
    """Return the task group of a request: its program and number."""
    return ALONE if hint is None or hint.group < 0 else (hint.program, hint.group)
