"""A plain second computation of what may join the running requests, beside the engine's own."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from sglang.srt.core.call_hints import CallHint
from sglang.srt.core.request import Request
from sglang.srt.engine.pass_budgets import PassBudgets
from sglang.srt.schedule.capacity import Capacity

TARGETS = (0.0, 0.0, 0.5, 1.1, 1.5, 3.0)  # milliseconds; a pass of the fake worker takes 1 or more


class RandomHints:
    """Hints of a history's requests: none in half of the histories."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"hints {seed}")
        self.some = self._random.random() < 0.5
        self.target_ms = self._random.choice([0.5, 1.2, 2.0, 40.0])
        self._arrived: dict[str, float] = {}

    def choose(self, now: float) -> tuple[CallHint | None, float]:
        """A request's hint and its application's arrival, None and 0 for most."""
        r = self._random
        if not self.some or r.random() < 0.4:
            return None, 0.0
        program = r.choice(["", *"pqr"])
        kind = r.choice(["latency", "latency", "throughput", ""])
        group = r.choice([-1, -1, 0, 1]) if program else -1
        hint = CallHint(program, kind, r.choice(TARGETS), 0.0, group, r.randint(-1, 3))  # type: ignore[arg-type]
        return hint, self._arrived.setdefault(program, now) if program else 0.0


def allowed(
    running: Sequence[CallHint | None], hint: CallHint | None, pass_ms: float, default: float
) -> bool:
    """Whether a request may join: no running request outside of its task group feels a pass that
    is longer than it bears."""
    for other in running:
        if other is None:
            continue
        target = other.tpot_ms or (default if other.kind == "latency" else math.inf)
        same = (
            hint is not None
            and hint.group >= 0
            and (hint.program, hint.group) == (other.program, other.group)
        )
        if not same and pass_ms > target:
            return False
    return True


class CheckedCapacity:
    """Watches the capacity of an engine's passes.

    Attributes:
        held: hints of the requests that the last step held back.
    """

    def __init__(self, budgets: PassBudgets, default: float, seen: Counter[str]) -> None:
        self._budgets, self._default, self._seen = budgets, default, seen
        self.held: list[CallHint | None] = []
        self._original = budgets.capacity
        budgets.capacity = self._watched  # type: ignore[method-assign]

    def _watched(self, running: Mapping[int, Request]) -> Capacity | None:
        found = self._original(running)
        if found is None:
            return None
        assert self._budgets.hinted, "capacity is limited without a hint"
        hints = [request.scheduling.hint for request in running.values()]
        store = self._budgets._store
        tokens = store.protected * store.page_size
        tokens += sum(len(r.context.tokens) - r.context.saved for r in running.values())
        admits, join = found.admits, found.join

        def checked(hint: CallHint | None, more: int) -> bool:
            answer = admits(hint, more)
            line = self._budgets.times.decode
            want = allowed(hints, hint, line.a + line.b * (tokens + more), self._default)
            assert answer == want, "a request joins against a target, or is held without one"
            if not answer:
                self.held.append(hint)
                self._seen["requests held for a target"] += 1
            return answer

        def joined(hint: CallHint | None, more: int = 0) -> None:
            nonlocal tokens
            hints.append(hint)
            tokens += more
            join(hint, more)

        found.admits = checked  # type: ignore[method-assign, assignment]  # both name it `more`
        found.join = joined  # type: ignore[method-assign, assignment]
        return found
