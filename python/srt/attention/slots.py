"""Slots: the targets of a pass's new keys and values, and layouts made of other layouts."""

from __future__ import annotations

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array, Layout


def written(layout: Layout, page_size: int) -> Int32Array:
    """Pool slots of the new tokens [T]."""
    at = np.repeat(layout.tables[:-1], layout.counts) + layout.positions // page_size
    slots: Int32Array = layout.pages[at] * page_size + layout.positions % page_size
    return slots


def subset(layout: Layout, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Layout:
    """The layout of some rows. Page tables are not copied: ``tables`` [len(rows)] points into the
    same ``pages`` and has no end."""
    positions = layout.starts[rows]
    return Layout(positions, layout.counts[rows], layout.tables[rows], layout.pages, positions)


def padded(layout: Layout, rows: int, page: int) -> Layout:
    """A layout of decode rows with rows added, up to ``rows``, each the first token of a sequence
    in ``page``: they write its first slot and read nothing else."""
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
    """Page tables of exactly the pages that rows use, less the first ``skip[r]`` of row ``r``:
    offsets [R + 1] and pages. ``layout.tables`` may be a ``subset``'s."""
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
