"""TurnQueue: jobs of several tenants, of which each tenant has one done in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """Any thread puts; one thread gets. A tenant's own jobs keep their order.

    The tenant whose job was given last waits behind all others that have one: a tenant waits for
    at most one job of each other tenant, however many these have.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._last = ""  # tenant of the job that was given last
        self._closed = False
        self._changed = threading.Condition()

    def put(self, tenant: str, job: T) -> None:
        """Add a job behind those that the tenant has."""
        with self._changed:
            self._waiting.setdefault(tenant, deque()).append(job)
            self._changed.notify()

    def close(self) -> None:
        """Give None once no job is left."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def get(self) -> T | None:
        """The next job, waiting for one; None where the queue is closed and empty."""
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            if self._last in self._waiting:
                self._waiting.move_to_end(self._last)
            self._last, jobs = next(iter(self._waiting.items()))
            job = jobs.popleft()
            if not jobs:
                del self._waiting[self._last]
            return job
