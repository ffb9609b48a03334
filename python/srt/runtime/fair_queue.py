"""FairQueue: the order in which the requests of several tenants enter the engine.

The engine orders its queue by prefix, arrival or priority, and knows no tenants: a thousand
requests of one tenant would all go before one of another. So the engine gets as many as it computes
at once, and some more to choose from. The rest waits here, and the tenant with the fewest inside is
next.
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
    """``future`` is done when the turn has come, and may be cancelled at any moment."""

    count: int
    rid: str
    future: asyncio.Future[None]
    inside: bool = False


class FairQueue:
    """``room``: completions that may be inside; a request of more than that goes in alone."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._inside: Counter[str] = Counter()
        self._outside: Counter[str] = Counter()
        self._queues: dict[str, deque[_Turn]] = {}

    @property
    def waiting(self) -> int:
        """Completions outside."""
        return self._outside.total()

    def held(self, tenant: str) -> int:
        """Completions of a tenant, inside and outside."""
        return self._inside[tenant] + self._outside[tenant]

    @asynccontextmanager
    async def turn(self, tenant: str, count: int, rid: str = "") -> AsyncIterator[None]:
        """``count`` completions of ``tenant`` are inside during the block. Raises TurnAborted."""
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
        """End the waiting of those named ``rid`` (None: all) of ``tenant`` (None: of all); return
        how many."""
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
            if tenant in self._queues:  # to the end of the line
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
