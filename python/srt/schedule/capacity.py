"""Capacity: limits admission while a latency-sensitive request runs (Parrot, section 5.4).

Parrot keeps the number of tokens in an engine below a limit that the strictest request sets. Here
the limit is the predicted time of a pass, which is the latency that a client sees: a request is
admitted if a pass in which every running request generates one token stays within the strictest
target. KV that requests share counts once, as kernels read it once.

Members of a task group do not limit each other, since only the end of the whole group matters.
Targets of other requests limit each member by itself, so a group may be admitted in parts.

A request that is not admitted waits at most until the latency-sensitive requests have ended. At
most ``max_overtakes`` later requests are admitted before it, then none, so it does not starve.
"""

from __future__ import annotations

import math

from sglang.srt.core.call_hints import CallHint
from sglang.srt.schedule.costs import PassTimes
from sglang.srt.schedule.prefill_budget import PrefillBudget

LEAST = 128  # prompt tokens that a pass may compute in any case
ALONE = ("", -1)  # group key of requests without a task group


class Capacity:
    """Predicted pass time against latency targets, while requests are added.

    Args:
        times: measured times of passes.
        default_ms: target in milliseconds of latency-sensitive requests without their own.
        tokens: KV tokens that the running requests hold, and that their prompts still need.
    """

    def __init__(self, times: PassTimes, default_ms: float, tokens: int) -> None:
        self._times, self._default_ms, self._tokens = times, default_ms, tokens
        self._strictest: list[tuple[float, tuple[str, int]]] = []  # the two lowest, of two groups
        self._alone = math.inf  # the strictest target of a request in no group

    def join(self, hint: CallHint | None, tokens: int = 0) -> None:
        """Add a running request that needs ``tokens`` more tokens of KV."""
        self._tokens += tokens
        if hint is not None and (hint.tpot_ms or hint.kind == "latency"):
            group, target = group_of(hint), hint.tpot_ms or self._default_ms
            targets = {key: ms for ms, key in self._strictest}
            targets[group] = min(target, targets.get(group, target))
            self._strictest = sorted((ms, key) for key, ms in targets.items())[:2]
            if group == ALONE and target < self._alone:
                self._alone = target

    def admits(self, hint: CallHint | None, tokens: int) -> bool:
        """Return whether passes with one more request stay within the targets of all requests that
        are not in its task group."""
        group = group_of(hint)
        others = (ms for ms, key in self._strictest if key == ALONE or key != group)
        return self._times.decode.at(self._tokens + tokens) <= next(others, math.inf)

    def within(self, budget: PrefillBudget) -> PrefillBudget:
        """Return the prompt budget, cut to the time that the targets of requests without a task
        group leave in a pass."""
        if self._alone == math.inf:
            return budget
        left = self._alone - self._times.decode.at(self._tokens)
        tokens = max(int(left / max(self._times.prompt, 1e-9)), LEAST)
        return budget._replace(tokens=min(tokens, budget.tokens))


def group_of(hint: CallHint | None) -> tuple[str, int]:
    """Return the task group of a request: its program and number."""
    return ALONE if hint is None or hint.group < 0 else (hint.program, hint.group)
