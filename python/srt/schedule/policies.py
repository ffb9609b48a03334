"""Order of the waiting requests: functions over a view, chosen by name.

The cache-aware orders, ``lpm`` and ``dfs-weight``, are those of the SGLang paper (section 3,
Theorem 3.1: longest shared prefix first visits the radix tree depth first, so every edge is
computed once). They would let a request without a cached prefix wait for ever. So ``order`` puts a
request first once too many later arrivals have overtaken it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sglang.srt.schedule.scheduler_view import Item, View

Order = Callable[[Sequence[Item], View], list[Item]]


def fcfs(items: Sequence[Item], view: View) -> list[Item]:
    """Order by arrival."""
    return sorted(items, key=lambda item: item.arrival)


def priority(items: Sequence[Item], view: View) -> list[Item]:
    """Order by ``priority``, the highest first; equals by arrival."""
    return sorted(items, key=lambda item: (-item.priority, item.arrival))


def shuffled(items: Sequence[Item], view: View) -> list[Item]:
    """Order at random, the same way for the same pass number."""
    out = fcfs(items, view)
    random.Random(view.step).shuffle(out)
    return out


def lpm(items: Sequence[Item], view: View) -> list[Item]:
    """Order by matched prefix, the longest first; equals by arrival."""
    return sorted(items, key=lambda item: (-view.match(item.id).tokens, item.arrival))


def dfs_weight(items: Sequence[Item], view: View) -> list[Item]:
    """Order depth first over the radix tree, the subtree with most waiting requests first."""
    paths = {item.id: view.match(item.id).path for item in items}
    weight: dict[int, int] = {}
    for path in paths.values():
        for node in path:
            weight[node] = weight.get(node, 0) + 1

    def key(item: Item) -> tuple[list[tuple[int, int]], int, int]:
        # The last pair sorts an item that ends at a node after the subtrees below that node. Items
        # may end inside one edge, at different depths: there too the deeper ones go first.
        path = [(-weight[node], node) for node in paths[item.id]]
        return [*path, (1, 0)], -view.match(item.id).tokens, item.arrival

    return sorted(items, key=key)


ORDERS: dict[str, Order] = {
    "lpm": lpm,
    "dfs-weight": dfs_weight,
    "fcfs": fcfs,
    "random": shuffled,
    "priority": priority,
}
AGING = ("lpm", "dfs-weight", "random")


def order(policy: str, view: View, max_overtakes: int) -> list[Item]:
    """Return the waiting items in the order of ``policy``, behind the overdue ones by arrival.

    Under the policies in ``AGING`` an item is overdue once ``max_overtakes`` later arrivals were
    admitted before it.
    """
    if policy not in AGING:
        return ORDERS[policy](view.waiting, view)
    overdue = [item for item in view.waiting if item.overtaken >= max_overtakes]
    rest = [item for item in view.waiting if item.overtaken < max_overtakes]
    return fcfs(overdue, view) + ORDERS[policy](rest, view)
