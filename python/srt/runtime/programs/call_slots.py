"""CallSlots: limits how many calls of programs a tenant has at the engine; the others queue."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CallSlots:
    """A bounded number of slots for each tenant's calls. Calls of earlier programs go first.

    Args:
        limit: most simultaneous calls of one tenant.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running: Counter[str] = Counter()
        self._lines: dict[str, list[tuple[float, int, asyncio.Future[None]]]] = {}
        self._gone: Counter[str] = Counter()  # cancelled entries that are still in a line
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return sum(map(len, self._lines.values())) - sum(self._gone.values())

    @asynccontextmanager
    async def slot(self, tenant: str, arrived: float) -> AsyncIterator[None]:
        """Hold a slot during the block. ``arrived``: moment when the call's program arrived."""
        await self._enter(tenant, arrived)
        try:
            yield
        finally:
            self._leave(tenant)

    async def _enter(self, tenant: str, arrived: float) -> None:
        if self.running[tenant] < self.limit:
            self.running[tenant] += 1
            return
        future = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(tenant, [])
        heapq.heappush(line, (arrived, next(self._numbers), future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._leave(tenant)  # the slot was handed over meanwhile
            else:
                self._gone[tenant] += 1
                self._tidy(tenant)
            raise

    def _leave(self, tenant: str) -> None:
        """Hand the slot to the next waiting call."""
        line = self._lines.get(tenant, [])
        while line:
            future = heapq.heappop(line)[2]
            waits = not future.done()
            if waits:
                future.set_result(None)
            else:
                self._gone[tenant] -= 1  # the cancelled call adds 1, perhaps after this line
            self._forget(tenant)
            if waits:
                return
        self.running[tenant] -= 1
        if not self.running[tenant]:
            del self.running[tenant]

    def _tidy(self, tenant: str) -> None:
        """Remove the cancelled entries of a queue once they are half of it."""
        line = self._lines.get(tenant, [])
        if 2 * self._gone[tenant] >= len(line):
            kept = [entry for entry in line if not entry[2].done()]
            self._gone[tenant] -= len(line) - len(kept)
            line[:] = kept
            heapq.heapify(line)
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        if not self._lines.get(tenant, True):
            del self._lines[tenant]
        if not self._gone[tenant]:
            del self._gone[tenant]
