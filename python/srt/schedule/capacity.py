"""Capacity: requests that may join while a latency-sensitive one runs (Parrot, section 5.4).

Parrot holds the tokens in an engine below a number that the strictest request sets. What a client
feels is the time of a pass, so that is predicted here: a request joins as long as a pass in which
every running request generates one token stays within the strictest target. KV that requests share
counts once, as kernels read it.

A task group counts as one: only the group's end matters, so its members do not hold each other
back. Other targets hold them back one by one, so that a group may be split.

A request that is held waits until the latency-sensitive ones have ended, at the latest. Those that
may join pass it, at most ``max_overtakes`` of them. Then nothing passes it, so it is never starved.
"""

from __future__ import annotations

import math

from sglang.srt.core.call_hints import CallHint
from sglang.srt.schedule.costs import PassTimes
from sglang.srt.schedule.prefill_budget import PrefillBudget

LEAST = 128  # prompt tokens that a pass may compute in any case
ALONE = ("", -1)  # group of the requests that are in none


class Capacity:
    """Time of the passes to come, as requests join.

    Args:
        times: of passes, measured.
        default_ms: target of a latency-sensitive request that names none.
        tokens: KV that the running requests hold, and that their prompts still need.
    """

    def __init__(self, times: PassTimes, default_ms: float, tokens: int) -> None:
        self._times, self._default_ms, self._tokens = times, default_ms, tokens
        self._strictest: list[tuple[float, tuple[str, int]]] = []  # two targets, of two groups
        self._alone = math.inf  # the strictest target of a request in no group

    def join(self, hint: CallHint | None, tokens: int = 0) -> None:
        """Count a running request, which needs ``tokens`` tokens of KV more."""
        self._tokens += tokens
        if hint is not None and (hint.tpot_ms or hint.kind == "latency"):
            group, target = group_of(hint), hint.tpot_ms or self._default_ms
            targets = {key: ms for ms, key in self._strictest}
            targets[group] = min(target, targets.get(group, target))
            self._strictest = sorted((ms, key) for key, ms in targets.items())[:2]
            if group == ALONE and target < self._alone:
                self._alone = target

    def admits(self, hint: CallHint | None, tokens: int) -> bool:
        """Whether one more request leaves the passes within the targets of all that are not in its
        task group."""
        group = group_of(hint)
        others = (ms for ms, key in self._strictest if key == ALONE or key != group)
        return self._times.decode.at(self._tokens + tokens) <= next(others, math.inf)

    def within(self, budget: PrefillBudget) -> PrefillBudget:
        """Return the budget of prompts, cut to what the targets of requests in no group leave of a
        pass."""
        if self._alone == math.inf:
            return budget
        left = self._alone - self._times.decode.at(self._tokens)
        tokens = max(int(left / max(self._times.prompt, 1e-9)), LEAST)
        return budget._replace(tokens=min(tokens, budget.tokens))


def group_of(hint: CallHint | None) -> tuple[str, int]:
    """Return the task group of a request: its program and number."""
    return ALONE if hint is None or hint.group < 0 else (hint.program, hint.group)
