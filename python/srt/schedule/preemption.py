"""Who gives way when memory runs out.

Only a younger request gives way to an older one. So the oldest always advances, and two requests
never take pages from each other in turn: there is no deadlock and no livelock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang.srt.schedule.view import Item


def victims(
    asker: Item,
    need: int,
    running: Sequence[Item],
    taken: set[int],
    exclusive: Callable[[int], int],
) -> tuple[list[int], int]:
    """Youngest requests first, until ``need`` pages are free.

    Args:
        running: all running requests. taken: ids that may not be chosen.

    Returns (ids, pages gained). Where the sum is short, only an asker older than everybody gets
    victims all the same: shared paths may yield more than the single counts say, and that is known
    once they are gone.
    """
    chosen: list[int] = []
    gained = 0
    candidates = [
        item
        for item in running
        if item.arrival > asker.arrival and item.id not in taken and not item.fixed
    ]
    for item in sorted(candidates, key=lambda item: -item.arrival):
        if gained >= need:
            break
        chosen.append(item.id)
        gained += exclusive(item.id)
    if gained < need and any(item.arrival < asker.arrival for item in running):
        return [], 0
    return chosen, gained
