"""FairQueue: the order in which the requests of several tenants enter the engine.

The engine orders its queue by prefix, arrival or priority, and knows no tenants: a thousand
requests of one tenant would all run before one of another tenant. So the engine gets only as many
requests as it runs at once, and some more to choose from. The others wait in this queue. The tenant
with the fewest completions in the engine is next.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


class TurnAborted(Exception):
    """The request was aborted while it waited for its turn."""


@dataclass(eq=False, slots=True)
class _Turn:
    """The turn of one request of ``count`` completions. ``future`` is done when the turn has come,
    and may be cancelled at any moment. ``inside``: the request is in the engine."""

    count: int
    rid: str
    future: asyncio.Future[None]
    inside: bool = False


class FairQueue:
    """Queue before the engine. ``room``: completions that may be in the engine ("inside"). A larger
    request enters when the engine has no other."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._inside: Counter[str] = Counter()
        self._outside: Counter[str] = Counter()
        self._queues: dict[str, deque[_Turn]] = {}

    @property
    def waiting(self) -> int:
        """Number of completions that wait in the queue."""
        return self._outside.total()

    def held(self, tenant: str) -> int:
        """Return the number of a tenant's completions, waiting and in the engine."""
        return self._inside[tenant] + self._outside[tenant]

    @asynccontextmanager
    async def turn(self, tenant: str, count: int, rid: str = "") -> AsyncIterator[None]:
        """Wait for a turn; ``count`` completions of ``tenant`` are in the engine during the block.
        Raises TurnAborted."""
        one = _Turn(count, rid, asyncio.get_running_loop().create_future())
        self._queues.setdefault(tenant, deque()).append(one)
        self._outside[tenant] += count
        self._let_in()
        try:
            await one.future
            yield
        finally:
            if one.inside:
                self._inside -= Counter({tenant: count})
            else:
                self._forget(tenant, one)
            self._let_in()

    def abort(self, rid: str | None = None, tenant: str | None = None) -> int:
        """Abort waiting requests named ``rid`` (None: all) of ``tenant`` (None: of all). Return how
        many."""
        queues = [queue for name, queue in self._queues.items() if tenant in (None, name)]
        chosen = [one for queue in queues for one in queue if rid in (None, one.rid)]
        waiting = [one for one in chosen if not one.future.done()]
        for one in waiting:
            one.future.set_exception(TurnAborted())
        return len(waiting)

    def _let_in(self) -> None:
        while self._queues:
            # Ties are broken by time: the tenant whose last turn is longest ago is first.
            tenant = min(self._queues, key=lambda name: self._inside[name])
            one = self._queues[tenant][0]
            total = self._inside.total()
            if total and total + one.count > self._room:
                return
            self._forget(tenant, one)
            if tenant in self._queues:  # to the end of the order of tenants
                self._queues[tenant] = self._queues.pop(tenant)
            self._inside[tenant] += one.count
            one.inside = True
            if not one.future.done():  # a turn that was just cancelled leaves by itself
                one.future.set_result(None)

    def _forget(self, tenant: str, one: _Turn) -> None:
        self._queues[tenant].remove(one)
        self._outside -= Counter({tenant: one.count})
        if not self._queues[tenant]:
            del self._queues[tenant]
