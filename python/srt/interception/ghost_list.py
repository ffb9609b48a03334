"""GhostList: which pages without a claim host memory takes, by what became of those before.

A page that the device gives up is worth a copy where such pages are used again while the tier has
them. Where they leave it unread, their copies take the time of others. So the tier is closed to
pages without a claim once nearly all of them leave it unread. Pages that it refuses are *ghosts*:
an open tier would have them until it had taken as many pages as it holds. Where ghosts are
requested again in this time, the tier is opened.

Pages of contexts that wait for a tool are always taken: their claim says that they will be used.
"""

from __future__ import annotations

from collections import deque

CLOSES, OPENS = 0.02, 0.05  # shares of the pages that are used again
RECORDS = 4096  # most refusals that are remembered


class GhostList:
    """Counts of one tier. Its memory is bounded: ghosts are counted by the moment they left.

    Args:
        size: pages of the tier.

    Attributes:
        open: whether pages without a claim are taken.
        refused: pages, since the start.
    """

    def __init__(self, size: int) -> None:
        self.size, self.open, self.refused = size, True, 0
        self._gone = self._used = 0.0  # pages that left or were refused, and those used again
        self._ghosts: deque[tuple[float, int]] = deque()  # (moment, pages refused before it)

    def left(self, pages: int, read: bool) -> None:
        """Note pages without a claim that have left the tier."""
        if self.open:
            self._count(pages, pages if read else 0)

    def takes(self, pages: int, now: float) -> bool:
        """Whether the tier takes pages without a claim that leave the device at ``now``, in
        seconds. Those that it does not take become ghosts."""
        if self.open:
            return True
        self._ghosts.append((now, self.refused))
        self.refused += pages
        if len(self._ghosts) > RECORDS:
            self._ghosts.popleft()
        self._count(pages, 0)
        return False

    def requested(self, pages: int, left: float) -> None:
        """Note a request for pages that no tier has, and that left the device at moment
        ``left``."""
        if self.open or pages <= 0:
            return
        while self._ghosts and self.refused - self._ghosts[0][1] > self.size:
            self._ghosts.popleft()  # an open tier would not have these any more
        if self._ghosts and left >= self._ghosts[0][0]:
            self._count(0, pages)

    def _count(self, gone: int, used: int) -> None:
        """Count pages. Open or close the tier once there are as many as it holds."""
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
