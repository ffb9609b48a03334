"""Calls of programs without an engine: what a prompt is answered with is a function of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from sglang.srt.core.call_hints import CallHint
from sglang.srt.core.clock import ManualClock
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.programs.model_calls import Body, CallPlace, Show


def reply(prompt: str) -> str:
    """The text that follows a prompt: another one for every prompt."""
    return f"<{random.Random(prompt).randrange(1 << 30):x}>"


class ScriptedCalls:
    """Answers calls after a random number of turns of the event loop; some fail.

    Attributes:
        prompts: in the order of their calls. bodies, hints, sites: theirs.
        ahead: prompts computed ahead.
        open: calls that are being answered.
        broken: prompts that contain one of these fail with its error.
        held: while it is set no call is answered.
    """

    def __init__(self, chance: random.Random, failures: float = 0.0) -> None:
        self._chance, self._failures = chance, failures
        self.prompts: list[str] = []
        self.hints: list[CallHint] = []
        self.sites: list[CallPlace] = []
        self.bodies: list[dict[str, Any]] = []
        self.ahead: list[str] = []
        self.open = 0
        self.broken: dict[str, Exception] = {}
        self.held: asyncio.Event | None = None

    async def ask(
        self, body: Body, place: CallPlace, show: Show | None = None, every: int = 0
    ) -> Any:
        fields = body()
        prompt = fields.get("text", fields.get("parts"))
        self.prompts.append(str(prompt))
        self.bodies.append(fields)
        self.hints.append(place.hint)
        self.sites.append(place)
        self.open += 1
        try:
            for part, error in self.broken.items():
                if part in str(prompt):
                    raise error
            await self._wait()
            if self._chance.random() < self._failures:
                raise self._chance.choice(
                    [RequestError("too long", code="context_length_exceeded"), EngineLost("gone")]
                )
            text = reply(str(prompt))
            for end in range(1, len(text) if show is not None else 0, 3):
                show(text[:end])  # type: ignore[misc]
                await self._wait()
            return {"text": text, "output_ids": [], "meta_info": {"finish_reason": None}}
        finally:
            self.open -= 1

    async def compute_ahead(self, text: str, place: CallPlace, adapter: str | None) -> bool:
        self.ahead.append(text)
        self.open += 1
        try:
            await self._wait()
        finally:
            self.open -= 1
        return True

    def counts(self) -> dict[str, float]:
        return {"calling": self.open, "calls": len(self.prompts)}

    async def _wait(self) -> None:
        for _ in range(self._chance.randint(0, 4)):
            await asyncio.sleep(0)
        if self.held is not None:
            await self.held.wait()


class ManualTimers:
    """Timers of a clock that is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._count = 0

    def later(self, seconds: float, call: Callable[[], None]) -> _ManualTimer:
        """Run a call once the clock has been moved so far."""
        timer = _ManualTimer(call)
        self._count += 1
        self._timers.append((self.clock.now() + seconds, self._count, timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the clock, and run what is due."""
        self.clock.advance(seconds)
        while due := sorted(t for t in self._timers if t[0] <= self.clock.now()):
            self._timers.remove(due[0])
            due[0][2].run()

    @property
    def waiting(self) -> int:
        """Timers that were neither run nor cancelled."""
        return sum(not timer.cancelled for _, _, timer in self._timers)


class _ManualTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self.cancelled = call, False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        if not self.cancelled:
            self._call()
