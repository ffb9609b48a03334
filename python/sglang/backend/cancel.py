"""Cancellation: aborts the calls in flight of one run from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from sglang.errors import BackendError

_CURRENT: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class Cancellation:
    """The cancellation of one run. Each call registers how to abort it (``aborted_by``) while it is
    in flight; ``cancel`` aborts all of them."""

    def __init__(self) -> None:
        self.cancelled = False
        self._aborts: set[Callable[[], object]] = set()
        self._lock = threading.RLock()

    def cancel(self) -> None:
        """Abort the calls in flight. Calls that begin later are refused with BackendError.

        A call that ends at the same time waits for this method, so no abort is called after its
        call has ended.
        """
        with self._lock:
            self.cancelled = True
            for abort in list(self._aborts):
                with suppress(Exception):  # a call whose abort fails ends by itself
                    abort()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the calls of this thread or task inside the block belong to this run."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


@contextmanager
def aborted_by(abort: Callable[[], object]) -> Iterator[None]:
    """Register ``abort`` while the block runs: cancelling the run calls it, in the cancelling
    thread. ``abort`` must not block.

    Raises BackendError if the run is cancelled already.
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
