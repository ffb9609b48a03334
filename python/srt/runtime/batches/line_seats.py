"""LineSeats: decides when a batch's request may run, and which one is next.

Requests of batches use only spare capacity. At most ``most`` of them run at once, each in a seat. A
request begins only while ``room`` says that the engines have room and no other request waits. The
owner with the fewest running requests is next; of one owner, the request that has waited longest.

A request has no seat while it waits for a retry. So an owner whose requests are refused for long
does not block other owners. An owner has at most ``most`` begun requests, with or without a seat.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

SECONDS = 0.05  # seconds between two calls of ``room`` while there is none


class LineSeats:
    """Seats for requests of batches. ``most``: number of seats. ``room``: called with the number of
    running requests of batches; returns whether one more may begin."""

    def __init__(self, most: int, room: Callable[[int], bool]) -> None:
        self._most, self._room = most, room
        self._running: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()  # with a seat, or waiting to be tried again
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return self._running.total()

    async def take(self, owner: str) -> None:
        """Wait for a seat for a new request. The caller later calls ``give``."""
        await self._seat(owner, begins=True)

    async def again(self, owner: str, seconds: float) -> None:
        """Leave the seat of a request, and take a seat again after ``seconds``. The caller later
        calls ``give``, also if this call is cancelled."""
        _less(self._running, owner)
        self._offer()
        try:
            await asyncio.sleep(seconds)
            await self._seat(owner, begins=False)
        except asyncio.CancelledError:
            self._running[owner] += 1
            raise

    def give(self, owner: str) -> None:
        """Release the seat of a request that has ended."""
        _less(self._running, owner)
        _less(self._begun, owner)
        self._offer()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _seat(self, owner: str, begins: bool) -> None:
        waiting = _Waiting(owner, begins, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._offer()
        try:
            await waiting.seat
        except asyncio.CancelledError:
            if waiting.seat.done() and not waiting.seat.cancelled():
                _less(self._running, owner)
                if begins:
                    _less(self._begun, owner)
                self._offer()
            raise

    def _offer(self) -> None:
        while self.running < self._most and (found := self._next()) is not None:
            if not self._room(self.running):
                self._ask_later()
                return
            self._waiting.remove(found)
            self._running[found.owner] += 1
            self._begun[found.owner] += found.begins
            found.seat.set_result(None)

    def _next(self) -> _Waiting | None:
        """Return the request that gets the next seat; None if none may have a seat."""
        self._waiting = deque(one for one in self._waiting if not one.seat.done())
        may = (one for one in self._waiting
               if not one.begins or self._begun[one.owner] < self._most)  # fmt: skip
        return min(may, key=lambda one: self._running[one.owner], default=None)

    def _ask_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SECONDS, self._ask)

    def _ask(self) -> None:
        self._timer = None
        self._offer()


@dataclass(eq=False)
class _Waiting:
    """A request that waits for a seat; ``begins``: it is new, and not a retry."""

    owner: str
    begins: bool
    seat: asyncio.Future[None]


def _less(counts: Counter[str], owner: str) -> None:
    counts[owner] -= 1
    if not counts[owner]:
        del counts[owner]
