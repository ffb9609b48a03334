"""Scheduler: decides what the next pass computes. ``plan`` is a pure function of a ``View``.

Order of service within a pass:

1. running requests, oldest first: one token for each that generates, prompt chunks within the token
   budget. If pages are short, younger requests are retracted.
2. waiting requests in the policy's order, while slots, budget and pages last. The first request
   that does not fit ends the pass, so that later ones cannot overtake it for ever.

A request is admitted only if its whole prompt fits and a reserve of pages stays free for the tokens
that the running requests may still generate. If no request is running, the reserve does not apply.
The reserve grows with every retraction and decays with every pass (as in gLLM).

Only a younger request is retracted for an older one. So the oldest always advances, and two
requests never take pages from each other in turn: there is no deadlock and no livelock.

A policy is a function over a view, chosen by name (``ORDERS``). The cache-aware orders ``lpm`` and
``dfs-weight`` are those of the SGLang paper (section 3, Theorem 3.1: longest shared prefix first
visits the radix tree depth first, so every edge is computed once). Alone they would let a request
without a cached prefix wait for ever. So ``order`` puts a request first once too many later
arrivals have overtaken it.

Two orders use hints about programs (``core/call_hints``): under ``app`` all calls of an application
rank by the arrival of the application; under ``attained`` programs with the fewest computed tokens
go first. Under every order, latency-sensitive requests limit admission (``schedule/capacity``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang.srt.schedule.prefill_budget import PrefillBudget
from sglang.srt.schedule.scheduler_view import Item, PassDecision, View

# Most tokens that the reserve assumes a request will generate: few use up a long limit.
EXPECTED = 4096
NUMBER_BITS = 40  # low bits of ``Item.arrival``; the high bits are a time (``arrival_key``)
Order = Callable[[Sequence[Item], View], list[Item]]


@dataclass(slots=True)
class Reserve:
    """Share of the tokens that running requests may still generate for which pages stay free."""

    share: float = 0.3
    low: float = 0.02
    step_up: float = 0.1
    step_down: float = 0.002

    def passed(self) -> None:
        """Lower the share after a pass."""
        self.share = max(self.low, self.share - self.step_down)

    def retracted(self) -> None:
        """Raise the share after a retraction."""
        self.share = min(1.0, self.share + self.step_up)


def plan(view: View, policy: str, max_overtakes: int) -> PassDecision:
    """Return the requests that the next pass retracts, and the tokens that it computes."""
    retract: list[int] = []
    rows: list[tuple[int, int]] = []
    available, budget = _run(view, retract, rows)
    if not retract:
        _admit(view, policy, max_overtakes, available, budget, rows)
    return PassDecision(retract, rows)


def _run(view: View, retract: list[int], rows: list[tuple[int, int]]) -> tuple[int, PrefillBudget]:
    """Append running requests to ``rows`` and ``retract``. Return (pages left, budget left)."""
    available, budget = view.available, view.budget
    taken: set[int] = set()
    for item in view.running:
        number, work = item.id, item.work
        if work == 0 or item.fixed or number in retract:
            continue
        count = 1 if work == 1 else budget.chunk(view.start(number), work)
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
            budget = budget.after(view.start(number), count)
    return available, budget


def victims(
    older: Item,
    need: int,
    running: Sequence[Item],
    taken: set[int],
    exclusive: Callable[[int], int],
) -> tuple[list[int], int]:
    """Choose requests to retract for an older one: the youngest first, until ``need`` pages are
    free.

    Args:
        taken: ids that must not be chosen.
        exclusive: returns the number of pages that retracting a request would free, by id.

    Return (ids, pages gained). If the sum is too small, return ([], 0), except for the oldest
    request of all: several victims that share a path free more than the sum of their counts, which
    shows only after they are retracted.
    """
    chosen: list[int] = []
    gained = 0
    candidates = [
        item
        for item in running
        if item.arrival > older.arrival and item.id not in taken and not item.fixed
    ]
    for item in sorted(candidates, key=lambda item: item.arrival, reverse=True):
        if gained >= need:
            break
        chosen.append(item.id)
        gained += exclusive(item.id)
    if gained < need and any(item.arrival < older.arrival for item in running):
        return [], 0
    return chosen, gained


def _admit(
    view: View,
    policy: str,
    max_overtakes: int,
    available: int,
    budget: PrefillBudget,
    rows: list[tuple[int, int]],
) -> None:
    """Append the waiting requests to admit to ``rows``."""
    slots = view.slots
    if not view.waiting or slots <= 0 or not budget.open:
        return
    planned = dict(rows)
    for item in view.running:  # keep pages for the rest of prompts whose computation has begun
        rest = item.work - planned.get(item.id, 0)
        if rest > 1:
            available -= pages(rest - max(item.room - planned.get(item.id, 0), 0), view.page_size)
    growth = sum(min(item.growth, EXPECTED) for item in view.running)
    alone = not view.running
    if not alone and pages(int(view.reserve * growth), view.page_size) > available:
        return  # the reserve alone does not fit, so no request does: skip sorting them
    capacity = view.capacity
    for item in order(policy, view, max_overtakes):
        if slots <= 0 or not budget.open:
            break
        found = view.match(item.id)
        work = item.work - found.tokens
        need = found.pins + pages(work, view.page_size)
        if capacity is not None and not capacity.admits(item.hint, need * view.page_size):
            if item.overtaken >= max_overtakes:
                break
            continue
        growth += min(item.growth, EXPECTED)
        spare = 0 if alone else pages(int(view.reserve * growth), view.page_size)
        if need + spare > available:
            break
        # Tokens in host memory are copied, not computed. The last position is always computed.
        start = found.tokens + found.host
        count = budget.chunk(start, max(work - found.host, min(work, 1)))
        available -= need
        budget = budget.after(start, count)
        slots -= 1
        alone = False
        rows.append((item.id, count))
        if capacity is not None:
            capacity.join(item.hint, need * view.page_size)


def pages(tokens: int, page_size: int) -> int:
    """Return the number of pages that hold ``tokens`` tokens."""
    return -(-tokens // page_size) if tokens > 0 else 0


def fcfs(items: Sequence[Item], view: View) -> list[Item]:
    """Order by arrival."""
    return sorted(items, key=lambda item: item.arrival)


def priority(items: Sequence[Item], view: View) -> list[Item]:
    """Order by ``priority``, the highest first; equal ones by arrival."""
    return sorted(items, key=lambda item: (-item.priority, item.arrival))


def shuffled(items: Sequence[Item], view: View) -> list[Item]:
    """Order at random, the same way for the same pass number."""
    out = fcfs(items, view)
    random.Random(view.step).shuffle(out)
    return out


def lpm(items: Sequence[Item], view: View) -> list[Item]:
    """Order by matched prefix, the longest first; equal ones by arrival."""
    return sorted(items, key=lambda item: (-_matched(item, view), item.arrival))


def _matched(item: Item, view: View) -> int:
    """Return the number of tokens that are cached, on the device or in host memory."""
    found = view.match(item.id)
    return found.tokens + found.host


def dfs_weight(items: Sequence[Item], view: View) -> list[Item]:
    """Order depth first over the radix tree; of several subtrees, the one with the most waiting
    requests comes first (dfs-weight)."""
    paths = {item.id: view.match(item.id).path for item in items}
    weight: dict[int, int] = {}
    for path in paths.values():
        for node in path:
            weight[node] = weight.get(node, 0) + 1

    def key(item: Item) -> tuple[list[tuple[int, int]], int, int]:
        # The last pair sorts an item that ends at a node after the subtrees below that node. Of
        # items that end inside the same edge, those with more matched tokens go first.
        path = [(-weight[node], node) for node in paths[item.id]]
        return [*path, (1, 0)], -_matched(item, view), item.arrival

    return sorted(items, key=key)


def app(items: Sequence[Item], view: View) -> list[Item]:
    """Order by the arrival of the application; within an application, calls with the most stages
    after them first, then by arrival (Parrot, Algorithm 1, line 1)."""
    return sorted(
        items,
        key=lambda item: (item.arrival >> NUMBER_BITS, -_stage(item), item.arrival),
    )


def _stage(item: Item) -> int:
    return item.hint.stage if item.hint is not None else -1


def attained(items: Sequence[Item], view: View) -> list[Item]:
    """Order by the level of the program's attained service, the lowest first; equal ones by matched
    prefix, the longest first, then by arrival."""
    return sorted(items, key=lambda item: (item.level, -_matched(item, view), item.arrival))


ORDERS: dict[str, Order] = {
    "lpm": lpm,
    "dfs-weight": dfs_weight,
    "fcfs": fcfs,
    "random": shuffled,
    "priority": priority,
    "app": app,
    "attained": attained,
}
AGING = ("lpm", "dfs-weight", "random", "app", "attained")


def order(policy: str, view: View, max_overtakes: int) -> list[Item]:
    """Return the waiting items: overdue ones first, by arrival; then the others, by ``policy``.

    Under the policies in ``AGING`` an item is overdue once ``max_overtakes`` later arrivals were
    admitted before it. Under other policies no item is overdue.
    """
    if policy not in AGING:
        return ORDERS[policy](view.waiting, view)
    overdue = [item for item in view.waiting if item.overtaken >= max_overtakes]
    rest = [item for item in view.waiting if item.overtaken < max_overtakes]
    return fcfs(overdue, view) + ORDERS[policy](rest, view)
