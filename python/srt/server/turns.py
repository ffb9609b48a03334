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

_Waiting = tuple[int, "asyncio.Future[None]"]


class Turns:
    """``room``: completions that may be inside; one request of more than that goes in alone."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._inside: Counter[str] = Counter()
        self._outside: Counter[str] = Counter()
        self._queues: dict[str, deque[_Waiting]] = {}

    @property
    def waiting(self) -> int:
        """Completions outside."""
        return self._outside.total()

    def held(self, tenant: str) -> int:
        """Completions of a tenant, inside and outside."""
        return self._inside[tenant] + self._outside[tenant]

    @asynccontextmanager
    async def turn(self, tenant: str, count: int) -> AsyncIterator[None]:
        """``count`` completions of ``tenant`` are inside during the block."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append((count, future))
        self._outside[tenant] += count
        self._let_in()
        try:
            await future
            yield
        finally:
            if future.done() and not future.cancelled():
                self._inside -= Counter({tenant: count})
            else:
                self._forget(tenant, (count, future))
            self._let_in()

    def _let_in(self) -> None:
        while self._queues:
            # Of those with equally many inside, who has waited longest since his last turn.
            tenant = min(self._queues, key=lambda name: self._inside[name])
            count, future = self._queues[tenant][0]
            total = self._inside.total()
            if total and total + count > self._room:
                return
            self._forget(tenant, (count, future))
            if tenant in self._queues:  # to the end of the line
                self._queues[tenant] = self._queues.pop(tenant)
            self._inside[tenant] += count
            future.set_result(None)

    def _forget(self, tenant: str, one: _Waiting) -> None:
        self._queues[tenant].remove(one)
        self._outside -= Counter({tenant: one[0]})
        if not self._queues[tenant]:
            del self._queues[tenant]
