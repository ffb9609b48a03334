"""Turns: who goes into the engine next, where several tenants share it.

The engine orders what waits in it by prefix, arrival or priority, and knows of no tenants: whoever
sends a thousand requests is before whoever sends one. So no more go in than it computes at once,
and some that it may choose from; for the rest, whoever has the fewest inside is next.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


class TurnAborted(Exception):
    """Who waited for a turn shall wait no longer."""


@dataclass(eq=False, slots=True)
class _Turn:
    """``future``: that it has come, which may be cancelled at any moment; ``inside`` counts."""

    count: int
    rid: str
    future: asyncio.Future[None]
    inside: bool = False


class Turns:
    """``room``: completions that may be inside; one request of more than that goes in alone."""

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
            # Of those with equally many inside, who has waited longest since his last turn.
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
            if not one.future.done():  # else it has just been cancelled, and leaves by itself
                one.future.set_result(None)

    def _forget(self, tenant: str, one: _Turn) -> None:
        self._queues[tenant].remove(one)
        self._outside -= Counter({tenant: one.count})
        if not self._queues[tenant]:
            del self._queues[tenant]
