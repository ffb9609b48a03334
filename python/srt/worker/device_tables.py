"""Page tables on the device, kept from pass to pass: a decode step sends the entries that are new.

Each context has a segment of one array, with room to grow. Where the array is full, all segments
are forgotten and those of the pass are sent again.

    page_tables     says which entries of a context stand (``keep``, ``drop``), for every batch
    graphs          sends the tables of a pass before it is replayed

Kernels of earlier passes read the array before what is sent here is written: both are queued on one
stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.numeric.torch_later import Tensor
from sglang.srt.parallel.staging import send_all

# Entries that a segment may grow by, at least; else an eighth of its size.
ROOM = 64


@dataclass
class TableSegment:
    """``room`` entries from ``first`` on, of which the leading ``valid`` are the context's."""

    first: int
    room: int
    valid: int = 0


class DeviceTables:
    """Tables by context. Entry 0 of ``entries``, int32 [N], holds the page of padding rows."""

    def __init__(self, entries: Tensor, padding: int) -> None:
        self.entries, self.padding = entries, padding
        self._segments: dict[int, TableSegment] = {}
        self._next = 1  # the first entry of no segment

    def keep(self, context: int, kept: int) -> None:
        """The leading ``kept`` entries of a context's table stand, others may have changed."""
        segment = self._segments.get(context)
        if segment is not None and segment.valid > kept:
            segment.valid = kept

    def drop(self, context: int) -> None:
        """Forget the table of a context."""
        self._segments.pop(context, None)

    def clear(self) -> None:
        """Forget all tables; the array may hold anything."""
        self._segments.clear()
        self._next = 1

    def place(
        self, contexts: list[int], tables: Int32Array, pages: Int32Array
    ) -> Int32Array | None:
        """Send what is new of the tables of a pass. Row ``r`` is of ``contexts[r]``, all different,
        and reads ``pages[tables[r] : tables[r + 1]]``, the beginning of its table. Return where
        each begins in the array [R]; None where they do not fit, and the array then has none."""
        counts = np.diff(tables).tolist()
        if not self._allot(contexts, counts):
            self.clear()
            if not self._allot(contexts, counts):
                self.clear()
                return None
        self._send(contexts, counts, tables, pages)
        firsts = [self._segments[context].first for context in contexts]
        return np.array(firsts, dtype=np.int32)

    def _allot(self, contexts: list[int], counts: list[int]) -> bool:
        """Give every context a segment of its size. False where the array is full."""
        for context, count in zip(contexts, counts):
            segment = self._segments.get(context)
            if segment is not None and segment.room >= count:
                continue
            first, room = self._next, count + max(ROOM, count // 8)
            if first + room > len(self.entries):
                return False
            self._segments[context] = TableSegment(first, room)
            self._next = first + room
        return True

    def _send(
        self, contexts: list[int], counts: list[int], tables: Int32Array, pages: Int32Array
    ) -> None:
        at, values = [np.zeros(1, dtype=np.int64)], [np.array([self.padding], dtype=np.int32)]
        for context, count, table in zip(contexts, counts, tables.tolist()):
            segment = self._segments[context]
            if segment.valid < count:
                at.append(np.arange(segment.first + segment.valid, segment.first + count))
                values.append(pages[table + segment.valid : table + count])
        changes: dict[str, np.ndarray[Any, Any]] = {
            "at": np.concatenate(at),
            "values": np.concatenate(values),
        }
        sent = send_all(changes, self.entries.device)
        self.entries.index_copy_(0, sent["at"], sent["values"])
        for context, count in zip(contexts, counts):
            segment = self._segments[context]
            segment.valid = max(segment.valid, count)
