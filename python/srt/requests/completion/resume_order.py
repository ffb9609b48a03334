"""ResumeOrder: the order in which requests of a lost engine continue, to isolate a harmful one.

A request may be the reason why its engine fails. If all requests of that engine continued together,
the next engine would fail for all of them too. So requests that had begun to answer continue at
once. The others are suspects: each waits until all requests that continued before it answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from sglang.srt.engine.client import Client, EngineLost, SuspectRequest
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.serving_engines import EngineLeft

GATHERING = 0.05  # seconds within which all requests of a lost engine notice the loss
LONGEST = 10.0  # most seconds that the suspects of one loss wait for each other
MORE = 2  # additional losses allowed to a request that had begun to answer


class LossLog(Protocol):
    """Recorder of the requests of lost engines (``runtime/crash_dump``)."""

    def note(
        self, client: Client, error: EngineLost, request: CompletionRequest, text: str
    ) -> None:
        """Record a request of a lost engine. ``text``: the text of its completion so far."""


class ResumeOrder:
    """The requests that continue on another engine and have not begun to answer there.

    ``losses``: records each request of a lost engine, also one that may not continue.
    """

    def __init__(self) -> None:
        self.losses: LossLog | None = None
        self._going: set[object] = set()
        self._turns, self._suspects, self._until = asyncio.Lock(), 0, 0.0
        self._news = asyncio.Event()

    @asynccontextmanager
    async def turn(self, request: object, suspect: bool) -> AsyncIterator[None]:
        """Wait for the turn of ``request``; the block chooses its next engine. From then on other
        suspects wait until the request answers or ends."""
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
                with suppress(asyncio.TimeoutError):  # for example because the queue is full
                    await asyncio.wait_for(self._all_answer(), self._until - loop.time())
                self._going.add(request)
                yield
        finally:
            self._suspects -= 1

    def answers(self, request: object) -> None:
        """Record that a request has begun to answer, or has ended. No effect on requests that do
        not continue on another engine."""
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
        most: number of times that the request may continue; None: there is no other engine.
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._counted = self._all = 0

    def count(self, error: EngineLost, began: bool) -> None:
        """Count an engine that was lost with ``error``. ``began``: the request had begun to answer
        there. Such a loss counts only if it is the first one, because another request is the more
        likely reason.

        Raises EngineLost if the request may not continue.
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
                f"may continue {self.most} times (--max-resumes)"
            )
