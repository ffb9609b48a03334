"""HandleTable: the map from the handles of one space to pages."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from sglang.srt.core.space_messages import MOST_HANDLES

Array: TypeAlias = np.ndarray[Any, Any]
NO_PAGE = -1
LEAST = 64  # entries of a new table


def numbers(data: bytes, name: str) -> Array:
    """Return a verb's bytes as int32 numbers. Raises ValueError if a number is incomplete."""
    if len(data) % 4:
        raise ValueError(f"{name} has {len(data)} bytes; int32 numbers have 4 each")
    return np.frombuffer(data, dtype=np.int32)


def outside(values: Array, limit: int) -> bool:
    """Return whether any of the int32 values is outside ``[0, limit)``."""
    if len(values) == 1:
        return not 0 <= int(values[0]) < limit
    # As uint32 a negative number is a large one.
    return len(values) > 0 and int(values.view(np.uint32).max()) >= limit


class HandleTable:
    """Pages by handle, and which of them the space may write. All lookups check their handles.

    Attributes:
        mapped: number of handles that map to a page.
        known: slots of the last forward, in the space's numbers (bytes) and in the pool's. All are
            different and have KV. None: there are none, or that may have changed.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.mapped = 0
        self.known: tuple[bytes, Array] | None = None
        self._room = np.empty(0, dtype=np.int32)  # buffer for the slots of a plain decode loop
        self._pages = np.full(LEAST, NO_PAGE, dtype=np.int32)
        self._writable = np.zeros(LEAST, dtype=np.bool_)

    def verify_free(self, handles: Array) -> None:
        """Raise ValueError unless the handles are all different, in range and not in use."""
        outside = handles[(handles < 0) | (handles >= MOST_HANDLES)]
        if len(outside):
            raise ValueError(f"handle {outside[0]} is outside [0, {MOST_HANDLES})")
        known = handles[handles < len(self._pages)]
        used = known[self._pages[known] != NO_PAGE]
        if len(used):
            raise ValueError(f"handle {used[0]} is in use; free it first or take another")
        ordered = np.sort(handles)
        again = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(again):
            raise ValueError(f"handle {again[0]} is given twice")

    def map(self, handles: Array, pages: Array, writable: bool) -> None:
        """Map handles, which ``verify_free`` must have allowed."""
        if not len(handles):
            return
        most = int(handles.max())
        if most >= len(self._pages):
            more = max(most + 1, min(2 * len(self._pages), MOST_HANDLES)) - len(self._pages)
            self._pages = np.concatenate([self._pages, np.full(more, NO_PAGE, dtype=np.int32)])
            self._writable = np.concatenate([self._writable, np.zeros(more, dtype=np.bool_)])
        self._pages[handles] = pages
        self._writable[handles] = writable
        self.mapped += len(handles)

    def unmap(self, handles: Array) -> Array:
        """Unmap handles and return their pages. Raises ValueError, changing nothing, if a handle is
        not in use or named twice."""
        pages = self.pages(handles)
        if len(np.unique(handles)) < len(handles):
            raise ValueError("a handle is given twice")
        self._pages[handles] = NO_PAGE
        self.mapped -= len(handles)
        self.known = None
        return pages

    def pages(self, handles: Array) -> Array:
        """Return the pages of handles. Raises ValueError for a handle that is not in use."""
        table = self._pages
        if outside(handles, len(table)):
            wrong = handles[(handles < 0) | (handles >= len(table))][0]
            raise ValueError(f"handle {wrong} is not in use; allocate or import it first")
        pages = table[handles]
        if len(pages) and int(pages.min()) < 0:
            wrong = handles[pages == NO_PAGE][0]
            raise ValueError(f"handle {wrong} is not in use; allocate or import it first")
        return pages

    def slots(self, slots: Array) -> Array:
        """Convert slots of the space to slots of the pool. Raises the errors of ``pages``."""
        size = self.page_size
        if size == 1:
            return self.pages(slots)
        handles = np.floor_divide(slots, size)
        found: Array = self.pages(handles) * size + (slots - handles * size)
        return found

    def writable(self, handle: int) -> int:
        """Return the page of a handle if the space may write it; else ``NO_PAGE``."""
        if 0 <= handle < len(self._pages) and self._writable[handle]:
            return int(self._pages[handle])
        return NO_PAGE

    def appended(self, slot: int) -> Array:
        """Return the pool slots of ``known`` and ``slot``. The array is extended in place while its
        buffer has room: nothing else writes behind the known slots."""
        assert self.known is not None
        slots, room = self.known[1], self._room
        count = len(slots)
        if slots.base is not room or count == len(room):
            room = self._room = np.empty(max(LEAST, 2 * count), dtype=np.int32)
            room[:count] = slots
        room[count] = slot
        return room[: count + 1]

    def verify_writable(self, handles: Array) -> None:
        """Raise ValueError if one of these handles is read-only. All must be in use."""
        fixed = handles[~self._writable[handles]]
        if len(fixed):
            raise ValueError(
                f"handle {fixed[0]} is read-only (imported, or of the prefix cache); copy its "
                "tokens to a page of your own and write that"
            )

    def handles_of(self, pages: Array) -> Array:
        """Return the handles that map to any of these pages. Linear in the table's size."""
        found: Array = np.flatnonzero(np.isin(self._pages, pages)).astype(np.int32)
        found = found[self._pages[found] != NO_PAGE]
        return found

    def all_pages(self) -> Array:
        """Return the page of every handle in use."""
        found: Array = self._pages[self._pages != NO_PAGE]
        return found
