"""ResumeOrder: when requests of a lost engine go on, so that one that ends engines is found.

It may be a request that makes its engine fail. All requests of that engine would go on together, so
the next engine would be lost too, and the others with it. Those that had begun to answer go on at
once. Those that had not are suspects: each waits until all that went on before it answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from sglang.srt.engine.client import Client, EngineLost, SuspectRequest
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.serving_engines import EngineLeft

GATHERING = 0.05  # seconds until all requests of a lost engine know of it
LONGEST = 10.0  # seconds that the suspects of one loss wait at most for each other
MORE = 2  # engines that a request may lose beyond the limit where it had begun to answer in each


class LossLog(Protocol):
    """Takes what lost engines were computing (``runtime/crash_dump``)."""

    def note(
        self, client: Client, error: EngineLost, request: CompletionRequest, text: str
    ) -> None:
        """``text``: of the request's completion, as far as it had come."""


class ResumeOrder:
    """The requests that go on with another engine and have not begun to answer there.

    ``losses`` is given each request of a lost engine, also one that may not go on.
    """

    def __init__(self) -> None:
        self.losses: LossLog | None = None
        self._going: set[object] = set()
        self._turns, self._suspects, self._until = asyncio.Lock(), 0, 0.0
        self._news = asyncio.Event()

    @asynccontextmanager
    async def turn(self, request: object, suspect: bool) -> AsyncIterator[None]:
        """The time to choose the next engine of ``request``; it is going from then on."""
        if not suspect:
            self._going.add(request)
            yield
            return
        loop = asyncio.get_running_loop()
        if not self._suspects:
            self._until = loop.time() + LONGEST
        self._suspects += 1
        try:
            async with self._turns:
                await asyncio.sleep(GATHERING)
                with suppress(asyncio.TimeoutError):  # the queue is full, say
                    await asyncio.wait_for(self._all_answer(), self._until - loop.time())
                self._going.add(request)
                yield
        finally:
            self._suspects -= 1

    def answers(self, request: object) -> None:
        """Note that a request has begun to answer, or has ended. Of others it has no effect."""
        if request in self._going:
            self._going.remove(request)
            self._news.set()

    async def _all_answer(self) -> None:
        while self._going:
            self._news.clear()
            await self._news.wait()


class LostEngines:
    """The engines that one request has lost.

    Attributes:
        most: times that it may go on; None: there is no other engine.
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._counted = self._all = 0

    def count(self, error: EngineLost, began: bool) -> None:
        """Count an engine that was lost with ``error``. One of those in which the request had begun
        to answer counts, and no more: it was lost by another request, more likely.

        Raises EngineLost where the request may not go on.
        """
        if self.most is None:
            raise error
        if isinstance(error, EngineLeft):
            return
        self._all += 1
        self._counted += not began or self._all == 1
        if self._counted > self.most or self._all > self.most + MORE:
            raise SuspectRequest(
                f"{error}; the request has been in {self._all} engines that were lost, and "
                f"may go on {self.most} times (--max-resumes)"
            )
