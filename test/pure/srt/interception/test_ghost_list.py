"""A tier closes to pages that leave it unread, and opens where it would have had what is wanted."""

from __future__ import annotations

import random

import pytest
from helpers.mutation import Mutation, drop, mutate
from sglang.srt.interception.ghost_list import CLOSES, OPENS, RECORDS, GhostList

SIZE = 100


def closed() -> GhostList:
    ghosts = GhostList(SIZE)
    ghosts.left(SIZE, False)
    assert not ghosts.open
    return ghosts


def test_a_tier_whose_pages_are_read_stays_open() -> None:
    ghosts = GhostList(SIZE)
    for _ in range(100):
        ghosts.left(19, False)
        ghosts.left(1, True)
        assert ghosts.takes(10, 0.0)
    assert ghosts.refused == 0


def test_a_tier_whose_pages_leave_unread_closes() -> None:
    ghosts = GhostList(SIZE)
    ghosts.left(SIZE - 1, False)
    assert ghosts.takes(1, 0.0), "too few have left to tell"
    ghosts.left(1, False)
    assert not ghosts.takes(7, 0.0)
    assert ghosts.refused == 7


def reopens(distance: int, share: float) -> bool:
    """Whether a closed tier opens where a share of the pages is requested again after ``distance``
    others were refused, a page a second."""
    ghosts, due = closed(), 0.0
    for now in range(20 * SIZE):
        if ghosts.takes(1, float(now)):
            return True
        due += share
        if now >= distance and due >= 1:
            ghosts.requested(1, float(now - distance))
            due -= 1
    return False


def test_a_tier_opens_where_it_would_have_had_the_ghosts() -> None:
    assert reopens(SIZE // 2, 4 * OPENS)
    assert not reopens(SIZE // 2, CLOSES), "too few ghosts are wanted"
    assert not reopens(2 * SIZE, 4 * OPENS), "the tier would have lost them again"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("requested", "left >= _"), ("takes", "_._ghosts.append(_)"), ("takes", "_._count(_, 0)")],
)
def test_a_fault_of_the_ghost_list_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, pattern: str
) -> None:
    assert reopens(SIZE // 2, 4 * OPENS)
    assert not reopens(2 * SIZE, 4 * OPENS)
    mutate(monkeypatch, Mutation(GhostList, name, pattern, drop))
    assert not reopens(SIZE // 2, 4 * OPENS) or reopens(2 * SIZE, 4 * OPENS)


def test_its_memory_is_bounded() -> None:
    ghosts = GhostList(10**9)
    ghosts.open = False
    for now in range(2 * RECORDS):
        ghosts.takes(1, float(now))
    assert len(ghosts._ghosts) == RECORDS


def test_random_traffic_keeps_the_counts() -> None:
    for seed in range(50):
        r = random.Random(seed)
        ghosts, now, refused = GhostList(r.randint(1, 200)), 0.0, 0
        for _ in range(300):
            now += r.choice([0.0, 0.5, 5.0])
            pages = r.randint(0, 30)
            match r.randrange(3):
                case 0:
                    ghosts.left(pages, r.random() < 0.05)
                case 1:
                    was_open = ghosts.open
                    assert ghosts.takes(pages, now) == was_open
                    refused += 0 if was_open else pages
                case _:
                    ghosts.requested(pages, now - r.choice([0.0, 3.0, 100.0]))
            assert ghosts.refused == refused
            assert 0 <= ghosts._gone < max(ghosts.size, 1) + 60
            moments = [moment for moment, _ in ghosts._ghosts]
            assert moments == sorted(moments)
        assert not ghosts._ghosts or not ghosts.open
