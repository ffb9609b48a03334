"""LineSeats: which batch's request is run next, and when.

Requests of batches take what others leave: at most ``most`` run at once, and one begins only while
``room`` says that the engines have room that no other request waits for. The owner with the
fewest running is next, and of one owner the batch that has waited longest.

A request that is to be tried again later has no seat meanwhile, so that an owner whose requests are
refused for long keeps no other owner waiting. An owner has at most ``most`` requests that have
begun, with or without a seat.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

SECONDS = 0.05  # between two questions for room, while there is none


class LineSeats:
    """``room``: given how many requests of batches run, whether one more may begin."""

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
        """Wait for a seat for a request, which ends with ``give``."""
        await self._seat(owner, begins=True)

    async def again(self, owner: str, seconds: float) -> None:
        """Leave the seat of a request, and take one again after so many seconds. Where this is
        cancelled the request is followed by ``give`` all the same."""
        _less(self._running, owner)
        self._offer()
        try:
            await asyncio.sleep(seconds)
            await self._seat(owner, begins=False)
        except asyncio.CancelledError:
            self._running[owner] += 1
            raise

    def give(self, owner: str) -> None:
        """A request has ended; another may have its seat."""
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
        """The request that gets the next seat, None where none may have one."""
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
    """A request that waits for a seat; ``begins``: it has had none."""

    owner: str
    begins: bool
    seat: asyncio.Future[None]


def _less(counts: Counter[str], owner: str) -> None:
    counts[owner] -= 1
    if not counts[owner]:
        del counts[owner]
