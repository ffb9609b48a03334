"""Random histories of spaces beside ordinary requests over a fake worker. ``make test-long`` runs
ten times as many."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.seeds import LONG
from helpers.space_histories import SpaceHistory

CHUNK = 60

# Least counts in a chunk, about a third of what is usual: without them a change of the engine or of
# the histories could make them prove nothing.
USUAL = {
    "allocations": 120,
    "copies": 25,
    "ended": 50,
    "failed passes": 5,
    "forwards kept nowhere": 300,
    "imports": 2,
    "masks": 150,
    "prefixes": 15,
    "programs that begin anew": 10,
    "read in the pass that writes it": 1000,
    "refused allocations": 15,
    "requests": 100,
    "retractions": 8,
    "rows of spaces": 700,
    "rows that follow": 400,
    "straight loops": 50,
}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600 if LONG else CHUNK, CHUNK))
def test_space_histories(first: int) -> None:
    """No page is lost or held twice, whatever ends is the newest, answers are as by the definition,
    and in the end all is given back."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        seen += SpaceHistory(seed).run()
    rare = {name: seen[name] for name, least in USUAL.items() if seen[name] < least}
    assert not rare, f"histories {first} to {first + CHUNK - 1} hardly contain: {rare}"


def test_exports_that_share_pages_give_way_together() -> None:
    """Found by a history: neither export was the only holder of its pages."""
    SpaceHistory(20268).run()
