"""WorkOrder: selects the pending work of spaces that the next pass takes (Pie, section 5.2).

Higher priority goes first, then age. Work of one space may share a pass (vertical batching), and
may overtake work that it does not conflict with. All copies of a pass are made before its rows, and
all keys are written before any row attends. So a row may read slots that another row of the pass
writes, but no work may write slots that earlier work still has to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, TypeAlias

import numpy as np
from sglang.srt.spaces.space_work import CopyWork, ForwardWork, Work

Array: TypeAlias = np.ndarray[Any, Any]
Meet: TypeAlias = Callable[[Array, Array], bool]
SWEEPS = 4  # rounds of selection: work may wait for earlier work of lower priority
WINDOW = 32  # most pending work of a space that a pass considers: the oldest
CHECKS = 4096  # most comparisons of two lists of slots a pass, some microseconds each
SLOTS = 256  # slots that one comparison may compare; larger lists count as several


class Comparisons:
    """Comparisons of lists of slots, at most ``CHECKS`` a pass; after that the answer is always
    that two lists have a slot in common, which is safe."""

    def __init__(self, meet: Meet) -> None:
        self._meet, self.left = meet, CHECKS

    def meet(self, some: Array, others: Array) -> bool:
        self.left -= 1
        if len(some) and len(others):
            self.left -= (len(some) + len(others)) // SLOTS
        return self.left < 0 or self._meet(some, others)


def select(
    queues: Iterable[Sequence[Work]], take: Callable[[Work], bool | None], meet: Meet
) -> None:
    """Call ``take`` with each pending work that the pass may compute, in the order of service.

    Args:
        queues: pending work of each space, in the order of its verbs; not changed by ``take``.
        take: returns True if the pass now has all of the work, False if none or a part, None if
            the pass is full.
        meet: returns whether two lists of slots have a slot in common.
    """
    waiting = [(work, queue[:WINDOW]) for queue in queues for work in queue[:WINDOW]]
    if len(waiting) > 1:
        waiting.sort(key=lambda pair: (-pair[0].priority, pair[0].number))
    taken: set[int] = set()  # numbers of work
    comparisons = Comparisons(meet)
    for _ in range(SWEEPS):
        rest, progress = [], False
        for work, queue in waiting:
            if len(queue) > 1 and must_wait(work, queue, taken, comparisons.meet):
                rest.append((work, queue))
                continue
            done = take(work)
            if done is None:
                return
            if done:
                taken.add(work.number)
                progress = True
        if not progress or not rest:
            return
        waiting = rest


def must_wait(work: Work, queue: Sequence[Work], taken: Set[int], meet: Meet) -> bool:
    """Return whether work conflicts with earlier work of its queue, so that the pass cannot take
    it. ``taken``: numbers of work that the pass has."""
    for before in queue:
        if before.number >= work.number:
            return False
        if before.number in taken:
            if _conflict(before, work, meet):
                return True
        elif (
            meet(before.writes, work.reads)
            or meet(before.writes, work.writes)
            or meet(before.reads, work.writes)
        ):
            return True
    return False


def _conflict(before: Work, work: Work, meet: Meet) -> bool:
    """Return whether work cannot share a pass with earlier work ``before``."""
    if isinstance(before, ForwardWork):
        if meet(before.writes, work.writes) or meet(before.reads, work.writes):
            return True
        return isinstance(work, CopyWork) and meet(before.writes, work.reads)
    if isinstance(before, CopyWork) and isinstance(work, CopyWork):
        return meet(before.writes, work.reads) or meet(before.writes, work.writes)
    return False
