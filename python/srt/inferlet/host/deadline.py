"""Deadline: interrupts a guest whose turn has used the processor for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wasmtime import Engine


class Deadline:
    """The moment until which the thread of a lane may compute. Made by that thread, whose clock it
    reads; ``look`` is called by the ticker's.

    The engine's epoch moves only here, so time in which another process has the processor, or a
    guest waits, does not count.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()  # a turn that ends is not interrupted, nor is the next one
        self.now = _thread_clock()
        self._at: float | None = None
        self.passed = False

    def begin(self, at: float) -> None:
        """The thread enters a guest, which may compute until its clock shows ``at``."""
        with self._lock:
            self._at, self.passed = at, False

    def end(self) -> None:
        """The thread has left the guest."""
        with self._lock:
            self._at = None

    def look(self) -> None:
        """Interrupt the guest where its time is up."""
        with self._lock:
            if self._at is not None and self.now() > self._at:
                self._at, self.passed = None, True
                self._engine.increment_epoch()


def _thread_clock() -> Callable[[], float]:
    """Seconds of processor time of the calling thread, for any thread to read; elapsed time where
    the system tells no other thread."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)
