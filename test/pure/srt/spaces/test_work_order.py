"""WorkOrder: the pending work that shares a pass, and the comparisons that this takes."""

from __future__ import annotations

import numpy as np
from sglang.srt.spaces.space_work import NONE, CopyWork, Work
from sglang.srt.spaces.work_order import CHECKS, SLOTS, WINDOW, Array, select


def _queue(count: int, width: int) -> list[Work]:
    """Work that shares the slots that it reads, and has one each that it writes."""
    reads = np.arange(width, dtype=np.int32)
    return [
        CopyWork(n, reads, np.array([width + n], dtype=np.int32), priority=0) for n in range(count)
    ]


def _selected(queues: list[list[Work]]) -> tuple[list[int], int]:
    """Numbers of the work that a pass takes, and how many slots it compares."""
    taken: list[int] = []
    compared = 0

    def take(work: Work) -> bool:
        taken.append(work.number)
        return True

    def meet(some: Array, others: Array) -> bool:
        nonlocal compared
        compared += len(some) + len(others) if len(some) and len(others) else 0
        return bool(np.isin(others, some).any())

    select(queues, take, meet)
    return taken, compared


def test_work_that_does_not_conflict_shares_a_pass() -> None:
    assert _selected([_queue(40, 100)])[0] == list(range(WINDOW))


def test_large_views_are_compared_as_long_as_a_pass_may() -> None:
    """Other work waits for the next pass, but never the oldest of a space."""
    width = 100_000
    taken, compared = _selected([_queue(WINDOW, width)])
    assert compared <= CHECKS * SLOTS + width + 1
    assert 1 < len(taken) < WINDOW
    alone, compared = _selected([_queue(2, CHECKS * SLOTS)])
    assert (alone, compared) == ([0], 0), "one comparison is more than a pass may make"


def test_views_are_compared_for_nothing_where_nothing_is_written() -> None:
    queue = _queue(WINDOW, 100_000)
    for work in queue:
        assert isinstance(work, CopyWork)
        work.writes = NONE
    assert _selected([queue]) == (list(range(WINDOW)), 0)
