"""Promises: values that are set later, and failures that reach all waiting steps."""

from __future__ import annotations

import asyncio
from typing import Any

from sglang.srt.requests.request_error import RequestError


class StepFailure:
    """Reason that a step has no value.

    Attributes:
        step: number of the step; -1: no step. label: the step, with the program's line.
        cause: the failure that led to this one; the failure itself if it is the first.
        code: error code as in RequestError. cancelled: a client or the session's end ended it.
    """

    __slots__ = ("cancelled", "cause", "code", "label", "reason", "step")

    def __init__(
        self, step: int, label: str, reason: str, code: str, cancelled: bool = False
    ) -> None:
        self.step, self.label, self.reason, self.code = step, label, reason, code
        self.cancelled, self.cause = cancelled, self

    def of(self, step: int, label: str) -> StepFailure:
        """Return the failure of a step that depended on the failed one, with the same reason."""
        found = StepFailure(step, label, self.reason, self.code, self.cancelled)
        found.cause = self.cause
        return found

    @property
    def message(self) -> str:
        """Step, line and reason; for a step that waited, also the step that failed."""
        cause = self.cause
        if cause is self or not cause.label:
            return f"{self.label}: {self.reason}" if self.label else self.reason
        return f"{self.label} has no value, because of {cause.label}: {self.reason}"

    def error(self) -> RequestError:
        """Return a new RequestError for this failure."""
        return RequestError(self.message, code=self.code)


class StepFailed(Exception):
    """A value that a step waits for will not be set."""

    def __init__(self, failure: StepFailure) -> None:
        self.failure = failure
        super().__init__(failure.message)


class Signal:
    """A notification that wakes all waiting tasks once."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Wait for the next ``notify``."""
        future = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)
        self._futures.clear()


class Promise:
    """A value that is set once, or a failure.

    Attributes:
        value: None until it is set.
        failure: reason that the value will not be set.
        settled: the value or the failure is set.
        text: the text generated so far, if the value is being generated; otherwise None.
    """

    __slots__ = ("_grown", "_settled", "failure", "settled", "text", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.failure: StepFailure | None = None
        self.settled = False
        self.text: str | None = None
        self._settled, self._grown = Signal(), Signal()

    def set(self, value: Any) -> None:
        """Set the value. A settled promise stays as it is."""
        if not self.settled:
            self.value = value
            self._end()

    def fail(self, failure: StepFailure) -> None:
        """Set the failure. A settled promise stays as it is."""
        if not self.settled:
            self.failure = failure
            self._end()

    def grow(self, text: str) -> None:
        """Publish the text generated so far."""
        if not self.settled:
            self.text = text
            self._grown.notify()

    def _end(self) -> None:
        self.settled, self.text = True, None
        self._settled.notify()
        self._grown.notify()

    async def result(self) -> Any:
        """Wait for the value and return it. Raises StepFailed."""
        while not self.settled:
            await self._settled.wait()
        if self.failure is not None:
            raise StepFailed(self.failure)
        return self.value

    async def growth(self) -> str | None:
        """Wait until the text has grown and return it; return None once the promise is settled."""
        if not self.settled:
            await self._grown.wait()
        return self.text
