"""Shared prefixes: groups of rows of a pass whose leading keys are the same, and read only once.

A layout here may be a ``slots.subset``, which has offsets of tables but not their end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sglang.srt.attention.attention_protocol import Layout

Rows = np.ndarray[Any, np.dtype[np.int64]]


def kin(layout: Layout, page_size: int, least: int) -> Rows:
    """Return a label per row, int64 [R]: the same label for rows that share their first ``least``
    keys, 0 for rows that share these keys with no other row."""
    place = -(-least // page_size) - 1
    long = layout.starts >= least
    tables = layout.tables[: len(long)]
    page = np.where(long, layout.pages[np.where(long, tables + place, 0)], -1)
    _, family, size = np.unique(page, return_inverse=True, return_counts=True)
    return np.where(long & (size[family] > 1), family + 1, 0)


def common(layout: Layout, rows: Rows, limit: int) -> int:
    """Return the number of leading pages that all ``rows`` share, at most ``limit``."""
    if len(rows) == 1:
        return 0
    tables = layout.tables[rows]
    first = layout.pages[tables[0] : tables[0] + limit]
    for table in tables[1:]:
        differs = first[:limit] != layout.pages[table : table + limit]
        if differs.any():
            limit = int(differs.argmax())
    return limit


def groups(layout: Layout, page_size: int, least: int) -> list[tuple[list[int], int]]:
    """Return groups (rows, tokens): rows that share ``tokens`` leading keys, at least ``least``, in
    whole pages and computed before this pass. A row is in one group at most."""
    label = kin(layout, page_size, least)
    found = []
    for family in np.unique(label[label > 0]):
        rows = np.flatnonzero(label == family)
        pages = common(layout, rows, int(layout.starts[rows].min()) // page_size)
        if pages * page_size >= least:
            found.append((rows.tolist(), pages * page_size))
    return found
