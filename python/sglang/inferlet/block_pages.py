"""BlockPages: the page of each block of a text, and all of them in order, kept for the next
forward."""

from __future__ import annotations

from array import array
from typing import Any


class BlockPages(dict[int, int]):
    """Pages by block, in the order in which blocks got their first page.

    A straight loop adds a page a token and hands out all of them each time, so the list is extended
    and not built again. Whatever else changes pages drops it.
    """

    _listed: array[int] | None = None

    def listed(self) -> array[int]:
        """A copy of all pages, in order."""
        if self._listed is None:
            self._listed = array("i", self.values())
        return self._listed[:]

    def __setitem__(self, block: int, page: int) -> None:
        if block in self:
            self._listed = None
        elif self._listed is not None:
            self._listed.append(page)
        super().__setitem__(block, page)

    def __delitem__(self, block: int) -> None:
        self._listed = None
        super().__delitem__(block)

    def pop(self, block: int, *default: Any) -> Any:
        """Remove a block; return its page."""
        self._listed = None
        return super().pop(block, *default)

    def update(self, *others: Any, **more: int) -> None:
        """Add or replace pages."""
        self._listed = None
        super().update(*others, **more)

    def clear(self) -> None:
        """Remove all blocks."""
        self._listed = None
        super().clear()
