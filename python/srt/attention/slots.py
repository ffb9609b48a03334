"""Pool slots of a pass's new keys and values, and layouts derived from other layouts."""

from __future__ import annotations

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array, Layout


def written(layout: Layout, page_size: int) -> Int32Array:
    """Return the pool slots of the new tokens, int32 [T]."""
    at = np.repeat(layout.tables[:-1], layout.counts) + layout.positions // page_size
    slots: Int32Array = layout.pages[at] * page_size + layout.positions % page_size
    return slots


def subset(layout: Layout, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Layout:
    """Return the layout of decode rows ``rows``. Page tables are not copied: ``tables``
    [len(rows)] has offsets into the same ``pages``, without an end."""
    positions = layout.starts[rows]
    return Layout(positions, layout.counts[rows], layout.tables[rows], layout.pages, positions)


def padded(layout: Layout, rows: int, page: int) -> Layout:
    """Return a layout of decode rows, padded to ``rows`` rows. A padding row is the first token of
    a sequence in ``page``: it writes and reads only the first slot of that page."""
    more = rows - len(layout.counts)
    if more == 0:
        return layout
    zeros, ones = np.zeros(more, dtype=np.int32), np.ones(more, dtype=np.int32)
    ends = layout.tables[-1] + np.arange(1, more + 1, dtype=np.int32)
    return Layout(
        np.concatenate([layout.starts, zeros]),
        np.concatenate([layout.counts, ones]),
        np.concatenate([layout.tables, ends]),
        np.concatenate([layout.pages, np.full(more, page, dtype=np.int32)]),
        np.concatenate([layout.positions, zeros]),
    )


def tables_of(
    layout: Layout, page_size: int, skip: Int32Array | None = None
) -> tuple[Int32Array, Int32Array]:
    """Return page tables with only the pages that rows use, without the first ``skip[r]`` of row
    ``r``, as offsets [R + 1] and pages. ``layout`` may be a ``subset``."""
    rows = len(layout.counts)
    used = -(-(layout.starts + layout.counts) // page_size)
    if skip is None and len(layout.tables) > rows and (np.diff(layout.tables) == used).all():
        return layout.tables, layout.pages
    begins = layout.tables[:rows] if skip is None else layout.tables[:rows] + skip
    counts = used if skip is None else used - skip
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    at = np.arange(offsets[-1], dtype=np.int32) + np.repeat(begins - offsets[:-1], counts)
    return offsets, layout.pages[at]
