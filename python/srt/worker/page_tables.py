"""Page tables of the contexts that a worker computes, kept from pass to pass.

A batch contains only changes: a table's entries from an index on, and the tables to forget. A row's
*view* is the part of its table that attention reads: without the gap that a segment does not see,
and no longer than the row's tokens need.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import LOOSE, Batch, Row
from sglang.srt.core.ints import Ints, ints
from sglang.srt.worker.device_tables import DeviceTables

_NO_PAGES = ints()


class PageTables:
    """Page tables by context.

    Attributes:
        pages, page_size: number and size of the pages of the KV pool.
        on_device: copies of the tables on a device, updated with every change; None without any.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages, self.page_size = pages, page_size
        self.on_device: DeviceTables | None = None
        self._tables: dict[int, Ints] = {}

    def __len__(self) -> int:
        """Number of tables."""
        return len(self._tables)

    def views(self, batch: Batch, ends: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Apply the changes of a batch. Return the offsets of the rows' views, int32 [R + 1], and
        the concatenated views. ``ends``: number of tokens that each row sees, its own included [R].

        Raises ValueError for a change that does not fit. The tables of the batch are then
        undefined, and the engine must send them in full.
        """
        new = joined([row.pages for row in batch.rows])
        if len(new) and outside(new, self.pages):
            raise ValueError(f"batch {batch.id} has a page outside [0, {self.pages}).")
        self.drop(batch.dropped)
        if self.on_device is not None:
            for row in batch.rows:
                self.on_device.keep(row.context, row.kept)
        used = -(-ends // self.page_size)
        parts = [
            self._view(batch, i, row, count)
            for i, (row, count) in enumerate(zip(batch.rows, used.tolist()))
        ]
        offsets = np.zeros(len(parts) + 1, dtype=np.int32)
        np.cumsum(used, out=offsets[1:])
        return offsets, joined(parts)

    def drop(self, contexts: Iterable[int]) -> None:
        """Forget the tables of contexts."""
        for context in contexts:
            self._tables.pop(context, None)
            if self.on_device is not None:
                self.on_device.drop(context)

    def _view(self, batch: Batch, index: int, row: Row, count: int) -> Ints:
        """Update a row's table. Return the first ``count`` entries that the row sees."""
        table = self._tables.get(row.context)
        if table is not None and row.kept == len(table):
            table.extend(row.pages)
        else:
            table = self._changed(batch, index, row)
        if row.gap is not None:
            low, high = row.gap
            table = table[:low] + table[high : high + count - low]
        elif len(table) > count:
            table = table[:count]
        if len(table) < count:
            raise ValueError(
                f"batch {batch.id}: row {index} has too few pages for its tokens: start "
                f"{row.start}, {len(row.tokens)} tokens, {len(table)} pages of {self.page_size}."
            )
        return table

    def _changed(self, batch: Batch, index: int, row: Row) -> Ints:
        """Store and return a row's new table: the kept entries and the new ones."""
        if row.context == LOOSE:
            return row.pages
        before = self._tables.get(row.context, _NO_PAGES)
        if len(before) < row.kept:
            raise ValueError(
                f"batch {batch.id}: row {index} keeps {row.kept} pages of context {row.context}; "
                f"{len(before)} are known. Send its whole table."
            )
        table = self._tables[row.context] = before[: row.kept] + row.pages
        return table


def joined(parts: list[Ints]) -> Int32Array:
    """Return the concatenated arrays, int32."""
    return np.frombuffer(bytearray().join(parts), dtype=np.int32)


def outside(values: Int32Array, limit: int) -> bool:
    """Return True if a value is outside ``[0, limit)``. ``values``: int32, at least one."""
    return int(values.view(np.uint32).max()) >= limit  # a negative number becomes a large one
