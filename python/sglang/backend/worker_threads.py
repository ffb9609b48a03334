"""Workers: the threads in which executors wait for their backends.

A job never waits for another job (the parent's executor starts a fork, a join waits in the
program's own thread). So a bounded number of threads cannot deadlock, for any number of executors.
The only exception is a tool, which may run whole programs: its job waits inside ``released``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar
from weakref import WeakSet

from sglang.backend.global_settings import global_config

T = TypeVar("T")
_END = object()

IDLE_SECONDS = 0.25

_ALL: WeakSet[Workers] = WeakSet()


class Workers:
    """Thread pool. Starts a thread if none is idle; an idle thread ends after ``idle`` seconds."""

    def __init__(self, idle: float = IDLE_SECONDS, limit: int | None = None) -> None:
        """``limit``: limit of the threads; None: ``global_config.max_threads``."""
        self._idle_seconds = idle
        self._limit = limit
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        """Reset to no threads and no jobs, in the constructor and in a forked process."""
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._idle = 0
        self.count = 0
        self._own = threading.local()

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job, which must not raise. May run the job itself if no thread can start."""
        with self._changed:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._changed.notify()
                return
            if self.count >= (self._limit or global_config.max_threads):
                return
            self.count += 1
        try:
            threading.Thread(target=self._run, name="sglang-worker", daemon=True).start()
        except RuntimeError:
            # The system refuses a thread. A running one takes the job, or else the caller.
            with self._changed:
                self.count -= 1
                orphaned = self.count == 0 and job in self._jobs
                if orphaned:
                    self._jobs.remove(job)
            if orphaned:
                job()

    def own_thread(self) -> bool:
        """Return True if the calling thread runs a job."""
        return getattr(self._own, "inside", False)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Context in which the calling thread's job waits for other jobs.

        The thread does not count towards the limit inside, so that the other jobs can begin.
        """
        if not self.own_thread():
            yield
            return
        with self._changed:
            self.count -= 1
            waiting = bool(self._jobs)
        if waiting:
            self.submit(lambda: None)  # starts a thread, which takes the first job
        try:
            yield
        finally:
            with self._changed:
                self.count += 1

    def _run(self) -> None:
        self._own.inside = True
        while True:
            with self._changed:
                while not self._jobs:
                    self._idle += 1
                    woken = self._changed.wait(self._idle_seconds)
                    self._idle -= 1
                    if not woken and not self._jobs:
                        self.count -= 1
                        return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # an interrupt of a job must not end this thread
                threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), None]))
            del job  # an idle thread keeps no executor alive

    def call(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Run ``function(*args)`` in a worker, with the caller's context. Return its future."""
        future: Future[T] = Future()
        context = copy_context()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = context.run(function, *args)
            except StopIteration as error:  # futures of event loops do not accept StopIteration
                raised = RuntimeError("the program raised StopIteration")
                raised.__cause__ = error
                future.set_exception(raised)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(job)
        return future


WORKERS = Workers()


def _forked() -> None:
    for workers in _ALL:
        workers._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


async def in_worker(function: Callable[..., T], *args: Any) -> T:
    """Run ``function(*args)`` in a worker and await its result."""
    return await asyncio.wrap_future(WORKERS.call(function, *args))


async def pumped(iterate: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Yield the items of ``iterate()``, which a worker reads until the reader stops."""
    loop, gone = asyncio.get_running_loop(), threading.Event()
    items: asyncio.Queue[Any] = asyncio.Queue()

    def put(item: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(items.put_nowait, item)

    def draw() -> None:
        try:
            for item in iterate():
                if gone.is_set():
                    return
                put(item)
        finally:
            put(_END)

    future = WORKERS.call(draw)
    try:
        while (item := await items.get()) is not _END:
            yield item
        await asyncio.wrap_future(future)
    finally:
        gone.set()
