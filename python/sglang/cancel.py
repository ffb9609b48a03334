"""Cancellation: how the calls in flight of one run are aborted from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

_CURRENT: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class Cancellation:
    """A call announces how to abort it for as long as it waits; ``cancel`` aborts them all."""

    def __init__(self) -> None:
        self.cancelled = False
        self._aborts: set[Callable[[], object]] = set()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Abort what is in flight and whatever still begins."""
        with self._lock:
            self.cancelled = True
            aborts = list(self._aborts)
        for abort in aborts:
            with suppress(Exception):  # what cannot be aborted ends by itself
                abort()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Calls made inside, in this thread or task, belong to this run."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


def in_a_run() -> bool:
    """Whether the calling thread or task is making a call of a program."""
    return _CURRENT.get() is not None


@contextmanager
def aborted_by(abort: Callable[[], object]) -> Iterator[None]:
    """While inside, cancelling the run calls ``abort`` from the cancelling thread."""
    current = _CURRENT.get()
    if current is None:
        yield
        return
    with current._lock:
        current._aborts.add(abort)
        cancelled = current.cancelled
    try:
        if cancelled:
            abort()
        yield
    finally:
        with current._lock:
            current._aborts.discard(abort)
