"""CallSlots: how many calls of programs a tenant has at the engine; the others wait in line."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CallSlots:
    """A bounded number of calls at once of each tenant; programs that arrived earlier go first.

    Args:
        limit: calls of one tenant at once.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running: Counter[str] = Counter()
        self._lines: dict[str, list[tuple[float, int, asyncio.Future[None]]]] = {}
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def slot(self, tenant: str, arrived: float) -> AsyncIterator[None]:
        """A slot, for as long as the block takes. ``arrived``: when the call's program came."""
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
        entry = (arrived, next(self._numbers), future)
        heapq.heappush(line, entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._leave(tenant)  # the slot was handed over meanwhile
            elif entry in line:
                line.remove(entry)
                heapq.heapify(line)
                self._forget(tenant)
            raise

    def _leave(self, tenant: str) -> None:
        """Hand the slot to the next in line."""
        line = self._lines.get(tenant, [])
        while line:
            future = heapq.heappop(line)[2]
            self._forget(tenant)
            if not future.done():
                future.set_result(None)
                return
        self.running[tenant] -= 1
        if not self.running[tenant]:
            del self.running[tenant]

    def _forget(self, tenant: str) -> None:
        if not self._lines.get(tenant, True):
            del self._lines[tenant]
