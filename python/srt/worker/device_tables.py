"""Page tables on the device, kept from pass to pass: a decode step sends only the new entries.

Each context has a segment of one array, with room to grow. When the array is full, all segments
are dropped and the tables of the current pass are sent again.

    page_tables     reports which entries of a context are unchanged (``keep``, ``drop``)
    graphs          sends the tables of a pass before its graph is replayed

Sending and kernels use one stream, so kernels of earlier passes have read the array before new
entries are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.numeric.torch_later import Tensor
from sglang.srt.parallel.staging import send_all

# Free entries of a new segment: at least this number, or an eighth of the table's size.
ROOM = 64


@dataclass
class TableSegment:
    """``room`` entries from index ``first`` on; the first ``valid`` of them are up to date."""

    first: int
    room: int
    valid: int = 0


class DeviceTables:
    """Tables by context. Entry 0 of ``entries``, int32 [N], holds the page of padding rows."""

    def __init__(self, entries: Tensor, padding: int) -> None:
        self.entries, self.padding = entries, padding
        self._segments: dict[int, TableSegment] = {}
        self._next = 1  # index of the first entry that belongs to no segment

    def keep(self, context: int, kept: int) -> None:
        """Note that the first ``kept`` entries of a context's table are unchanged, and no more."""
        segment = self._segments.get(context)
        if segment is not None and segment.valid > kept:
            segment.valid = kept

    def drop(self, context: int) -> None:
        """Forget the table of a context."""
        self._segments.pop(context, None)

    def clear(self) -> None:
        """Forget all tables. The contents of the array are undefined afterwards."""
        self._segments.clear()
        self._next = 1

    def place(
        self, contexts: list[int], tables: Int32Array, pages: Int32Array
    ) -> Int32Array | None:
        """Send new entries of a pass's tables. Row ``r``, of ``contexts[r]``, reads the beginning
        of its table, ``pages[tables[r] : tables[r + 1]]``; contexts differ. Return the indices of
        the tables' first entries [R]; None, with all tables dropped, if they do not fit."""
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
        """Give every context a segment of ``counts`` entries. Return False if the array is full."""
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
