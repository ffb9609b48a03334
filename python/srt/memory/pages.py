"""PagePool: the free pages of the KV cache. A page is a number here; the worker has the bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise

from sglang.srt.core.ints import Ints, ints


class PagePool:
    """A free list of pages. Each page is either free, in the radix tree, owned by one context, or
    held by inferlets (``srt.spaces``)."""

    def __init__(self, size: int) -> None:
        """Make a pool of ``size`` free pages. Raises ValueError if ``size`` is below 1."""
        if size < 1:
            raise ValueError(f"a page pool needs at least 1 page, not {size}")
        self.size = size
        self._free = ints(range(size - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> Ints:
        """Take ``count`` pages. Raises MemoryError, taking none, if fewer are free."""
        if count > len(self._free):
            raise MemoryError(f"{count} pages wanted, {len(self._free)} free of {self.size}")
        if count <= 0:
            return ints()
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def claim(self, pages: Collection[int]) -> None:
        """Take these pages, all of which must be free. Time is linear in the pool's size."""
        wanted = set(pages)
        self._free = ints(page for page in self._free if page not in wanted)

    def give(self, pages: Ints) -> None:
        """Return pages to the pool."""
        self._free.extend(pages)

    def check(self, owned: Iterable[int]) -> None:
        """Raise AssertionError unless each page is exactly once in the free list or in ``owned``.
        Time is linear in the pool's size."""
        found = sorted([*self._free, *owned])
        if found != list(range(self.size)):
            lost = sorted(set(range(self.size)).difference(found))
            twice = sorted({page for page, after in pairwise(found) if page == after})
            raise AssertionError(f"pages {lost} are lost, pages {twice} have two owners")
