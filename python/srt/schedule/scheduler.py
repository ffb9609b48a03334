"""plan: what the next pass computes. A pure function of a view; memory and torch are elsewhere.

Order of service within a pass:

1. running requests, oldest first: one token each of those that generate, then prompt chunks within
   the token budget. Where pages are short, younger ones are retracted.
2. waiting requests in the policy's order, while slots, budget and pages last. The first that does
   not fit ends it, so that nobody slips past it for ever.

A request is admitted only if its whole prompt fits and a reserve for what the running ones may
still draw stays free; with nothing running it is admitted whatever the reserve. The reserve grows
with every retraction and decays with every pass (as in gLLM).
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.schedule.order import order
from sglang.srt.schedule.preemption import victims
from sglang.srt.schedule.view import Decision, View

# What a request may draw counts up to here: few that ask for a whole long context use it.
EXPECTED = 4096


@dataclass(slots=True)
class Reserve:
    """The share of the possible growth to keep free, learnt from retractions."""

    share: float = 0.3
    low: float = 0.02
    step_up: float = 0.1
    step_down: float = 0.002

    def passed(self) -> None:
        self.share = max(self.low, self.share - self.step_down)

    def retracted(self) -> None:
        self.share = min(1.0, self.share + self.step_up)


def plan(view: View, policy: str, max_overtakes: int) -> Decision:
    """The next pass. See the module's head."""
    retract: list[int] = []
    rows: list[tuple[int, int]] = []
    available, budget = _run(view, retract, rows)
    if not retract:
        _admit(view, policy, max_overtakes, available, budget, rows)
    return Decision(retract, rows)


def _run(view: View, retract: list[int], rows: list[tuple[int, int]]) -> tuple[int, int]:
    """Rows of running requests. Returns pages and budget left."""
    available, budget = view.available, view.budget
    taken: set[int] = set()
    for item in view.running:
        number, work = item.id, item.work
        if work == 0 or item.fixed or number in retract:
            continue
        count = 1 if work == 1 else min(work, budget)
        if count <= 0:
            continue
        if count > item.room:
            need = pages(count - item.room, view.page_size)
            if need > available:
                chosen, gained = victims(
                    item, need - available, view.running, taken | set(retract), view.exclusive
                )
                retract.extend(chosen)
                available += gained
                if need > available:
                    continue
            available -= need
        taken.add(number)
        rows.append((number, count))
        if work > 1:
            budget -= count
    return available, budget


def _admit(
    view: View,
    policy: str,
    max_overtakes: int,
    available: int,
    budget: int,
    rows: list[tuple[int, int]],
) -> None:
    """Rows of waiting requests, appended to ``rows``."""
    slots = view.slots
    if not view.waiting or slots <= 0 or budget <= 0:
        return
    planned = dict(rows)
    for item in view.running:  # prompts under way keep the room for their rest
        rest = item.work - planned.get(item.id, 0)
        if rest > 1:
            available -= pages(rest - max(item.room - planned.get(item.id, 0), 0), view.page_size)
    growth = sum(min(item.growth, EXPECTED) for item in view.running)
    alone = not view.running
    if not alone and pages(int(view.reserve * growth), view.page_size) > available:
        return  # not even a request that needs no page: the order need not be known
    for item in order(policy, view, max_overtakes):
        if slots <= 0 or budget <= 0:
            break
        found = view.match(item.id)
        work = item.work - found.tokens
        need = found.pins + pages(work, view.page_size)
        growth += min(item.growth, EXPECTED)
        spare = 0 if alone else pages(int(view.reserve * growth), view.page_size)
        if need + spare > available:
            break
        count = min(work, budget)
        available -= need
        budget -= count
        slots -= 1
        alone = False
        rows.append((item.id, count))


def pages(tokens: int, page_size: int) -> int:
    """Pages that hold ``tokens`` tokens."""
    return -(-tokens // page_size) if tokens > 0 else 0
