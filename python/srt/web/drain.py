"""Drain: the server takes no new requests, and open requests end within a bounded time.

serving    every request is taken
draining   from ``begin`` on: new requests get 503, open ones may finish
drained    ``over`` is set: all requests have finished, or the rest was ended after ``timeout``
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from sglang.srt.requests.request_error import RequestError

log = logging.getLogger("sglang.server")

_POLL = 0.02  # seconds between two checks of the number of open requests


class Drain:
    """The drain of one server.

    Args:
        timeout: seconds after which open requests are ended.
        pending: returns the number of open requests.
        end: ends all open requests with an error.

    Attributes:
        begun: the drain has begun: no new request is taken.
        over: set when the drain has ended.
    """

    def __init__(
        self,
        timeout: float,
        pending: Callable[[], int],
        end: Callable[[RequestError], object],
    ) -> None:
        self.begun, self.over = False, asyncio.Event()
        self._timeout, self._pending, self._end = timeout, pending, end
        self._deadline = 0.0
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin the drain. A drain that has begun keeps its deadline."""
        if self.begun:
            return
        self.begun, self._deadline = True, time.monotonic() + self._timeout
        log.info("draining %d requests, for at most %g s", self._pending(), self._timeout)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def status(self) -> dict[str, object]:
        """Return whether the drain has begun, the number of open requests, and the seconds until
        their deadline (None before the drain)."""
        left = max(self._deadline - time.monotonic(), 0.0) if self.begun else None
        return {"draining": self.begun, "pending": self._pending(), "seconds_left": left}

    async def _run(self) -> None:
        while (left := self._pending()) and time.monotonic() < self._deadline:
            await asyncio.sleep(_POLL)
        if left:
            log.warning(
                "%d requests were open %g s after the drain began (--drain-timeout) and are ended",
                left, self._timeout,
            )  # fmt: skip
            self._end(
                RequestError(
                    "The server is shutting down and this request was not finished within "
                    f"{self._timeout:g} s (--drain-timeout); send it again, to another server.",
                    code="draining",
                )
            )
        self.over.set()
