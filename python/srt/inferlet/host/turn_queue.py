"""TurnQueue: jobs of several tenants, of which each tenant has one done in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from queue import SimpleQueue
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
        self._lock = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()  # an entry for each job, and for the end

    def put(self, tenant: str, job: T) -> None:
        """Add a job behind those that the tenant has."""
        with self._lock:
            self._waiting.setdefault(tenant, deque()).append(job)
        self._wake.put(None)

    def close(self) -> None:
        """Give None once no job is left."""
        self._wake.put(None)

    def get(self) -> T | None:
        """The next job, waiting for one; None where the queue is closed and empty."""
        self._wake.get()
        with self._lock:
            if not self._waiting:
                self._wake.put(None)
                return None
            if self._last in self._waiting:
                self._waiting.move_to_end(self._last)
            self._last, jobs = next(iter(self._waiting.items()))
            job = jobs.popleft()
            if not jobs:
                del self._waiting[self._last]
            return job
