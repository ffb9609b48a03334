"""10,000 random histories of the engine over a fake worker.

SIMULATION_HISTORIES=1000000 asks for more, SIMULATION_FIRST=n begins at seed n (to replay one).
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from helpers.simulation import simulate

HISTORIES = int(os.environ.get("SIMULATION_HISTORIES", "10000"))
FIRST = int(os.environ.get("SIMULATION_FIRST", "0"))
CHUNK = 500

# Least counts in a full chunk: about half of what is usual. Without them a change of the engine or
# of the simulation could make it prove nothing.
USUAL = {
    "requests": 4000,
    "retractions": 250,
    "histories that retract": 80,
    "evictions": 10_000,
    "splits": 400,
    "cached tokens": 3000,
    "overtakes": 250,
    "rows sharing within a pass": 80,
    "rows that follow": 900,
    "histories of large pages": 150,
    "forks of busy contexts": 300,
    "forks of idle contexts": 60,
    "aborts of waiting requests": 150,
    "aborts of running requests": 150,
    "aborts of retracted requests": 50,
    "failed passes": 25,
    "failed requests": 80,
    "flushes": 8,
    "forced tokens": 700,
    "accepted drafts": 180,
    "rejected drafts": 180,
    "texts drafted by ngram": 8,
    "texts drafted by draft": 60,
    "passes of draft models": 800,
    "dead ends": 140,
    "embeddings by last": 40,
    "embeddings by mean": 40,
}


@pytest.mark.parametrize("first", range(FIRST, FIRST + HISTORIES, CHUNK))
def test_histories(first: int) -> None:
    size = min(CHUNK, FIRST + HISTORIES - first)
    seen: Counter[str] = Counter()
    for seed in range(first, first + size):
        seen += simulate(seed).seen
    if size == CHUNK:
        rare = {name: seen[name] for name, least in USUAL.items() if seen[name] < least}
        assert not rare, f"histories {first} to {first + size - 1} hardly contain: {rare}"


def test_a_history_is_a_function_of_its_seed() -> None:
    one, two = simulate(7), simulate(7)
    assert one.worker.batches == two.worker.batches
    assert one.ended == two.ended
