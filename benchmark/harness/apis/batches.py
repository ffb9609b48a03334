"""Batches: concurrent calls gathered, for what computes a batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Call = TypeVar("Call")
Found = TypeVar("Found")


class Batches(Generic[Call, Found]):
    """``compute`` is given all waiting calls once no runnable task can add another; it blocks, as
    every task awaits an answer by then. One event loop uses a batch at a time."""

    def __init__(self, compute: Callable[[Sequence[Call]], Sequence[Found]]) -> None:
        self._compute = compute
        self._waiting: list[tuple[Call, asyncio.Future[Found]]] = []

    async def ask(self, call: Call) -> Found:
        """Raises what ``compute`` raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Found] = loop.create_future()
        self._waiting.append((call, future))
        loop.call_soon(self._look, len(self._waiting))
        return await future

    def _look(self, seen: int) -> None:
        """Compute in the task that came last, once a turn of the loop has brought no other."""
        if seen != len(self._waiting):
            return
        asyncio.get_running_loop().call_soon(self._settle, seen)

    def _settle(self, seen: int) -> None:
        if seen != len(self._waiting):
            return
        waiting, self._waiting = self._waiting, []
        try:
            found = self._compute([call for call, _ in waiting])
        except Exception as error:  # each of them failed of it
            for _, future in waiting:
                future.set_exception(error)
            return
        for (_, future), answer in zip(waiting, found, strict=True):
            future.set_result(answer)
