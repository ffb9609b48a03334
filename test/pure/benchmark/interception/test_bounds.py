"""Hit rates that no cache can exceed: Belady's rule against LRU and all other rules."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.interception.bounds import PageNumbers, Reading, belady, infinite

READINGS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=7)


def readings(paths: list[list[int]]) -> list[Reading]:
    """Readings of all pages of these contexts, in pages of one token."""
    numbers = PageNumbers(1)
    return [Reading(numbers.of(array("i", path)), len(path)) for path in paths]


def best(references: list[Reading], capacity: int) -> int:
    """Return the most hits of any rule, by trying all: after each turn, any beginning of each
    context read so far may stay."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for reading in references:
        following: dict[frozenset[int], int] = {}
        for cached, hits in states.items():
            count = 0
            while count < reading.prompt and reading.pages[count] in cached:
                count += 1
            pages = sorted(cached | set(reading.pages))
            for chosen in product((False, True), repeat=len(pages)):
                kept = frozenset(page for page, keep in zip(pages, chosen) if keep)
                if len(kept) == min(capacity, len(pages)):
                    following[kept] = max(following.get(kept, 0), hits + count)
        states = following
    return max(states.values())


@settings(max_examples=50)
@given(READINGS, st.integers(1, 5))
def test_belady_is_between_lru_and_an_infinite_cache(paths: list[list[int]], size: int) -> None:
    references = readings(paths)
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for reading in references:
        count = 0
        while count < reading.prompt and reading.pages[count] in cached:
            count += 1
        hits += count
        for page in reversed(reading.pages):
            cached[page] = None
            cached.move_to_end(page)
        while len(cached) > size:
            cached.popitem(last=False)
    assert hits <= belady(references, size) <= infinite(references)
    assert belady(references, 1000) == infinite(references)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_rule_has_more_hits_than_beladys(size: int) -> None:
    paths = [[0, 1, 1], [0, 2], [1, 1], [0, 1, 2], [1, 1, 0], [0, 2], [0, 1, 1], [1, 1]]
    references = readings(paths)
    assert belady(references, size) == best(references, size)


def test_pages_are_their_tokens_and_all_before() -> None:
    numbers = PageNumbers(2)
    one = numbers.of(array("i", [1, 2, 3, 4, 5]))
    assert len(one) == 2
    assert numbers.of(array("i", [1, 2, 3, 4, 6, 7]), one)[:2] == one
    assert numbers.of(array("i", [3, 4]))[0] not in one
