"""Clock: the time that the engine measures with, an argument of all that note a moment.

Only this module of core, memory, schedule and engine reads the machine's time. Budgets that count
a thread's processor time (``engine/masks``) have a clock of their own.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of moments, in seconds."""

    def now(self) -> float:
        """Return the seconds since a fixed moment; no call returns less than one before it."""
        ...


class SystemClock:
    """The machine's monotonic clock, which all its processes share."""

    now = staticmethod(time.monotonic)


class ManualClock:
    """A clock that stands still until it is moved, for tests and simulations."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Move on. Raises ValueError for a negative number of seconds."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds}; a clock moves on by at least 0")
        self._seconds += seconds


SYSTEM_CLOCK = SystemClock()
