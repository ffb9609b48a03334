"""Clock: the engine's source of time, passed as an argument to everything that notes a time.

In core, memory, schedule and engine only this module reads the machine's time. Budgets of a
thread's processor time (``engine/masks``) have a clock of their own.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time in seconds."""

    def now(self) -> float:
        """Return the seconds since a fixed time; the value never decreases."""
        ...


class SystemClock:
    """The machine's monotonic clock, which is the same in all processes."""

    now = staticmethod(time.monotonic)


class ManualClock:
    """A clock that changes only by ``advance``, for tests and simulations."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Add ``seconds`` to the time. Raises ValueError if ``seconds`` is negative."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds}; a clock moves on by at least 0")
        self._seconds += seconds


SYSTEM_CLOCK = SystemClock()
