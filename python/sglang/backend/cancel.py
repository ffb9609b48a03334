"""Cancellation: how the calls in flight of one run are aborted from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from sglang.errors import BackendError

_CURRENT: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class Cancellation:
    """A call announces how to abort it for as long as it waits; ``cancel`` aborts them all."""

    def __init__(self) -> None:
        self.cancelled = False
        self._aborts: set[Callable[[], object]] = set()
        self._lock = threading.RLock()

    def cancel(self) -> None:
        """Abort what is in flight and refuse whatever still begins.

        A call that ends meanwhile waits, so that no abort comes after its call.
        """
        with self._lock:
            self.cancelled = True
            for abort in list(self._aborts):
                with suppress(Exception):  # a call whose abort fails ends by itself
                    abort()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Calls made inside, in this thread or task, belong to this run."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


@contextmanager
def aborted_by(abort: Callable[[], object]) -> Iterator[None]:
    """Have a cancelled run call ``abort``, while inside, in the cancelling thread; it must not
    wait.

    Raises BackendError where the run is cancelled already.
    """
    current = _CURRENT.get()
    if current is None:
        yield
        return
    with current._lock:
        if current.cancelled:
            raise BackendError("the run has been cancelled")
        current._aborts.add(abort)
    try:
        yield
    finally:
        with current._lock:
            current._aborts.discard(abort)
