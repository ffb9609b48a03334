"""GhostList: decides whether host memory takes pages without a claim, from the use of earlier ones.

Copying a page that the device evicts is useful if such pages are used again while host memory has
them. If most are evicted unread, their copies only take time from others. So the tier is *closed*
to pages without a claim once nearly all of them leave it unread. Pages that a closed tier refuses
are *ghosts*: an open tier would have kept them until it had taken as many pages as it holds. If
enough ghosts are requested within that time, the tier is opened again.

Pages of contexts that wait for a tool are always taken, since they will probably be used.
"""

from __future__ import annotations

from collections import deque

CLOSES, OPENS = 0.02, 0.05  # shares of pages used again: below, the tier closes; above, it opens
RECORDS = 4096  # most refusals that are recorded


class GhostList:
    """Counts of one tier. Ghosts are recorded by the time of eviction, in bounded memory.

    Args:
        size: number of pages of the tier.

    Attributes:
        open: whether the tier takes pages without a claim.
        refused: number of pages refused since the start.
    """

    def __init__(self, size: int) -> None:
        self.size, self.open, self.refused = size, True, 0
        self._gone = self._used = 0.0  # pages that left or were refused, and those used again
        self._ghosts: deque[tuple[float, int]] = deque()  # (moment, pages refused before it)

    def left(self, pages: int, read: bool) -> None:
        """Note that pages without a claim have left the tier. ``read``: used while there."""
        if self.open:
            self._count(pages, pages if read else 0)

    def takes(self, pages: int, now: float) -> bool:
        """Return whether the tier takes pages without a claim that leave the device at time
        ``now``, in seconds. Refused pages become ghosts."""
        if self.open:
            return True
        self._ghosts.append((now, self.refused))
        self.refused += pages
        if len(self._ghosts) > RECORDS:
            self._ghosts.popleft()
        self._count(pages, 0)
        return False

    def requested(self, pages: int, left: float) -> None:
        """Note a request for pages that are in no tier and left the device at time ``left``. If
        they are ghosts, count them as used again."""
        if self.open or pages <= 0:
            return
        while self._ghosts and self.refused - self._ghosts[0][1] > self.size:
            self._ghosts.popleft()  # even an open tier would have evicted these by now
        if self._ghosts and left >= self._ghosts[0][0]:
            self._count(0, pages)

    def _count(self, gone: int, used: int) -> None:
        """Count pages. Decide to open or close once the count reaches the tier's size."""
        self._gone += gone
        self._used += used
        if self._gone < self.size:
            return
        share = self._used / self._gone
        if share < CLOSES if self.open else share > OPENS:
            self.open = not self.open
            self._gone = self._used = 0.0
            self._ghosts.clear()
        else:
            self._gone, self._used = self._gone / 2, self._used / 2
