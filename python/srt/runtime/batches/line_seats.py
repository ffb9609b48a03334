"""LineSeats: which batch's request is run next, and when.

Requests of batches take what others leave: at most ``most`` run at once, and one begins only while
``room`` says that the engines have room that no other request waits for. The owner with the
fewest running is next, and of one owner the batch that has waited longest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

SECONDS = 0.05  # between two questions for room, while there is none


class LineSeats:
    """``room``: given how many requests of batches run, whether one more may begin."""

    def __init__(self, most: int, room: Callable[[int], bool]) -> None:
        self._most, self._room = most, room
        self._running: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return self._running.total()

    async def take(self, owner: str) -> None:
        """Wait for a seat. Each is given back by ``give``."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, future))
        self._offer()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(owner)
            raise

    def give(self, owner: str) -> None:
        """Give a seat back."""
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._offer()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _offer(self) -> None:
        while self._waiting and self.running < self._most:
            if not self._room(self.running):
                self._ask_later()
                return
            owner, future = min(self._waiting, key=lambda one: self._running[one[0]])
            self._waiting.remove((owner, future))
            if not future.done():
                self._running[owner] += 1
                future.set_result(None)

    def _ask_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SECONDS, self._ask)

    def _ask(self) -> None:
        self._timer = None
        self._offer()
