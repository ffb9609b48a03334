"""Answers: the results of a submission's steps, updated by the server's events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sglang.errors import BackendError, Cancelled, refusal

ENDED = ("done", "failed", "cancelled")  # states of a submission that has ended


class Answers:
    """Results of one submission, for use in one event loop.

    Attributes:
        state: "waiting" (not accepted yet), "running", "done", "failed" or "cancelled".
        error: the error that ended the events early, or None.
    """

    def __init__(self) -> None:
        self.state = "waiting"
        self.error: BaseException | None = None
        self._done: dict[int, dict[str, Any]] = {}
        self._failed: dict[int, BaseException] = {}
        self._texts: dict[int, str] = {}
        self._wake: dict[int, asyncio.Event] = {}

    @property
    def ended(self) -> bool:
        """True if no further event will arrive."""
        return self.error is not None or self.state in ENDED

    def accept(self) -> None:
        """Note that the server has accepted the program."""
        if self.state == "waiting":
            self.state = "running"

    def take(self, event: dict[str, Any]) -> None:
        """Process an event. Repeated events have no effect."""
        kind, step = event.get("event"), event.get("step", -1)
        if kind == "grown":
            self._texts[step] = event["text"]
        elif kind == "done":
            self._done.setdefault(step, event)
        elif kind == "failed":
            self._failed.setdefault(step, _failure(event))
        elif kind == "cancelled":
            self._failed.setdefault(step, Cancelled(str(event.get("message") or "cancelled")))
        elif kind == "end":
            self.state = event["state"]
            self._wake_all()
            return
        else:
            return
        if (waiting := self._wake.get(step)) is not None:
            waiting.set()

    def fail(self, error: BaseException) -> None:
        """End with ``error``: no further event will arrive. Later calls have no effect."""
        if not self.ended:
            self.error, self.state = error, "failed"
            self._wake_all()

    def _wake_all(self) -> None:
        for waiting in self._wake.values():
            waiting.set()

    async def of(self, step: int) -> dict[str, Any]:
        """Wait for the event "done" of a step. Raises the error of the step or the submission."""
        while True:
            if (event := self._result(step)) is not None:
                return event
            await self._next(step)

    async def growing(self, step: int) -> AsyncIterator[str]:
        """Yield the text of a step so far, whenever the text changes, until the step is done."""
        shown = ""
        while self._result(step) is None:
            text = self._texts.get(step, "")
            if text != shown:
                shown = text
                yield text
            else:
                await self._next(step)

    async def end(self) -> None:
        """Wait for the last event. Raises the error of the submission as a whole."""
        while not self.ended:
            await self._next(-1)
        if self.error is not None:
            raise self.error

    def _result(self, step: int) -> dict[str, Any] | None:
        if (event := self._done.get(step)) is not None:
            return event
        if (error := self._failed.get(step, self.error)) is not None:
            raise error
        if self.state in ENDED:
            raise BackendError(f"the server ended the program, {self.state}, without step {step}")
        return None

    async def _next(self, step: int) -> None:
        """Wait for the next event of a step. Only one reader, the step's stream, may wait."""
        changed = self._wake[step] = asyncio.Event()
        try:
            await changed.wait()
        finally:
            del self._wake[step]


def _failure(event: dict[str, Any]) -> BackendError:
    code, message = event.get("code"), str(event.get("message") or "the step failed")
    cause = event.get("cause_step")
    if cause is not None and cause != event.get("step"):
        message = f"{message} (caused by step {cause})"
    status = code if isinstance(code, int) else None
    return refusal(status)(message, status)
