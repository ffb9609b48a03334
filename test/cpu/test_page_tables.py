"""Page tables that a worker keeps: against lists, and what does not fit is refused."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from helpers.tables import Tables
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.core.batch import Batch, Row, encode
from sglang.srt.core.ints import Ints, ints
from sglang.srt.worker.page_tables import PageTables

PAGES = 1000


def ends_of(batch: Batch) -> np.ndarray:
    return np.array([row.start + len(row.tokens) for row in batch.rows], dtype=np.int32)


def batches(r: random.Random, page_size: int) -> list[Batch]:
    """Contexts that grow, are cut, lose some of their pages to others and are dropped."""
    tables: dict[int, Ints] = {}
    out = []
    for number in range(30):
        rows, dropped = [], [c for c in tables if r.random() < 0.1]
        for context in dropped:
            del tables[context]
        for context in r.sample(range(8), r.randint(1, 5)):
            table = tables.get(context, ints())
            kept = r.randint(0, len(table)) if r.random() < 0.3 else len(table)
            new = ints(r.randrange(PAGES) for _ in range(r.randint(0 if kept else 1, 4)))
            table = tables[context] = table[:kept] + new
            end = r.randint(1, len(table) * page_size)
            count = r.randint(1, end)
            rows.append(Row(context, end - count, ints(range(count)), new, kept))
            if page_size == 1 and len(table) > 4:
                low = r.randint(0, 3)
                gap, seen = (low, low + 1), len(table) - 1
                rows.append(Row(context, seen - 1, ints([1]), ints(), len(table), gap))
        out.append(Batch(number, rows, dropped))
    return out


@given(st.randoms(use_true_random=False), st.sampled_from([1, 4]))
def test_views_are_those_of_lists(r: random.Random, page_size: int) -> None:
    tables, lists = PageTables(PAGES, page_size), Tables(page_size)
    for batch in batches(r, page_size):
        before = encode(batch)
        offsets, pages = tables.views(batch, ends_of(batch))
        views = [pages[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        assert views == [row.pages.tolist() for row in lists.rows(batch)]
        assert encode(batch) == before
        assert len(tables) == len(lists.known)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(1, 0, ints([1]), ints([PAGES])), r"batch 2 has a page outside \[0, 1000\)"),
        (Row(1, 0, ints([1]), ints([-1])), r"batch 2 has a page outside"),
        (Row(1, 3, ints([1]), ints([7]), 4), "keeps 4 pages of context 1; 3 are known"),
        (Row(9, 1, ints([1]), ints([7]), 1), "keeps 1 pages of context 9; 0 are known"),
        (Row(1, 3, ints([1, 2]), ints([7]), 3), "too few pages for its tokens: start 3, 2 tokens"),
        (Row(1, 3, ints([1]), ints([7]), 3, (1, 2)), "too few pages for its tokens"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(row: Row, message: str) -> None:
    tables = PageTables(PAGES, 1)
    first = Batch(1, [Row(1, 0, ints([1, 2, 3]), ints([5, 6, 7]))])
    tables.views(first, ends_of(first))
    batch = Batch(2, [row])
    with pytest.raises(ValueError, match=message):
        tables.views(batch, ends_of(batch))
