"""SpacePages: pages of the pool that programs hold, with the number of their holders.

A holder is a handle of a space, an export, or a forward whose KV is not kept. A page returns to the
pool when its last holder is removed. Pages of the prefix cache are not counted here: the tree owns
these, and a space locks their path.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from sglang.srt.core.ints import from_bytes
from sglang.srt.memory.store import Store

Array: TypeAlias = np.ndarray[Any, Any]


class SpacePages:
    """Holders by page, and which slots have KV.

    Attributes:
        held: number of pages that have a holder.
        number: number of the last work item; all spaces share one running count.
    """

    def __init__(self, store: Store) -> None:
        pages, size = store.pool.size, store.page_size
        self.held = self.number = 0
        self.page_size = size
        self._store = store
        self._holders = np.zeros(pages, dtype=np.int32)
        self._filled = np.zeros(pages * size, dtype=np.bool_)
        self._since = np.zeros(pages, dtype=np.int64)  # ``number`` when the page was taken
        self._mark = np.zeros(pages * size, dtype=np.int32)
        self._order = np.arange(pages * size, dtype=np.int32)

    # -- holders ---------------------------------------------------------------------------------

    def take(self, count: int) -> Array:
        """Take pages from the pool, evicting leaves of the prefix cache if needed; each has one
        holder and no KV. Raises MemoryError, taking none, if there are too few."""
        pages = np.frombuffer(self._store.take(count), dtype=np.int32)
        self._holders[pages] = 1
        self._since[pages] = self.number
        self._filled[self.slots(pages)] = False
        self.held += len(pages)
        return pages

    def hold(self, pages: Array) -> None:
        """Add a holder to each page. The pages must be different and have a holder."""
        self._holders[pages] += 1

    def give(self, pages: Array) -> None:
        """Remove a holder from pages, one for each time that a page is named. Pages without a
        holder return to the pool."""
        np.subtract.at(self._holders, pages, 1)
        free = np.unique(pages[self._holders[pages] == 0])
        self._store.pool.give(from_bytes(free.astype(np.int32).tobytes()))
        self.held -= len(free)

    def sole(self, pages: Array | int) -> Array:
        """Return a bool for each page: whether the page has a single holder."""
        found: Array = self._holders[pages] == 1
        return found

    def owned(self, pages: Array) -> Array:
        """Return a bool for each page: whether a program holds it (False: of the prefix cache)."""
        found: Array = self._holders[pages] > 0
        return found

    def holders(self) -> Array:
        """Return the number of holders of every page of the pool. For audits."""
        return self._holders

    # -- slots -----------------------------------------------------------------------------------

    def fill(self, slots: Array) -> None:
        """Note that work accepted by now writes KV to these slots."""
        self._filled[slots] = True

    def filled(self, slot: int) -> bool:
        """Return whether a slot has KV, or will have when the accepted work is done."""
        return bool(self._filled[slot])

    def lease(self, pages: Array) -> Array:
        """Note that pages of the prefix cache have KV. Return their slots, in order."""
        self._since[pages] = self.number
        slots = self.slots(pages)
        self._filled[slots] = True
        return slots

    def lose(self, slots: Array, number: int) -> Array:
        """Note that the KV that work ``number`` should write to these slots is undefined. Return
        those slots whose pages were not freed and taken again since."""
        mine: Array = slots[self._since[slots // self.page_size] < number]
        self._filled[mine] = False
        return mine

    def unfilled(self, slots: Array) -> Array:
        """Return those of the slots that have no KV."""
        found: Array = slots[~self._filled[slots]]
        return found

    def broken(self, slots: Array, number: int) -> bool:
        """Return whether one of the slots that work ``number`` reads has lost its KV."""
        lost = slots[~self._filled[slots]]
        return bool((self._since[lost // self.page_size] < number).any())

    def meet(self, some: Array, others: Array) -> bool:
        """Return whether two lists of slots have one in common."""
        if not len(some) or not len(others):
            return False
        self._mark[others] = 0
        self._mark[some] = 1
        return bool(self._mark[others].any())

    def repeated(self, slots: Array) -> bool:
        """Return whether a list names a slot twice."""
        if len(slots) < 2:
            return False
        if len(slots) > len(self._order):
            return True
        order = self._order[: len(slots)]
        self._mark[slots] = order
        return bool((self._mark[slots] != order).any())

    def slots(self, pages: Array) -> Array:
        """Return all slots of the pages, in order."""
        if self.page_size == 1:
            return pages
        offsets = np.arange(self.page_size, dtype=np.int32)
        found: Array = (pages[:, None] * self.page_size + offsets).ravel()
        return found
