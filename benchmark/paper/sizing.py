"""Sizing: how many items of a claim fit into a time, by a first small run of every side."""

from __future__ import annotations

from collections.abc import Mapping

from benchmark.harness.turns import PATIENCE
from benchmark.paper.figures import OURS

ROUNDS = 3
SLOW_SHARE = 0.1  # largest share of the time for one run of one side


def sized(
    seconds: Mapping[str, float], budget: float, least: int, most: int, rounds: int = ROUNDS
) -> int:
    """Items of a round. ``seconds`` an item by side, ours first; ``budget`` seconds in all. A slow
    side runs once, on as much as its share has room for.

    No less than ``least`` items, even where they take longer: there are fewer rounds then. No more
    than the nearest of the others has the time for, so that one at least does all the work.
    """
    ours = next(iter(seconds.values()))
    slow = {name: each for name, each in seconds.items() if each > PATIENCE * ours}
    fast = {name: each for name, each in seconds.items() if name not in slow}
    others = [each for name, each in slow.items() if not name.startswith(OURS)]
    if others and all(name.startswith(OURS) for name in fast):
        most = min(most, int(SLOW_SHARE * budget / min(others)))
    left = budget * max(0.3, 1 - SLOW_SHARE * len(slow))
    return max(least, min(most, int(left / (rounds * sum(fast.values())))))
