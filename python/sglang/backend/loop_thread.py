"""LoopThread: an event loop in a thread of its own, on which other threads make their calls."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from sglang.backend.cancel import aborted_by

T = TypeVar("T")
_END = object()
CLOSE_SECONDS = 10.0


class LoopThread:
    """The thread begins with the first call, and ends by ``close`` or when this object is garbage.

    Its end cancels what runs, then closes the asynchronous generators that the loop has seen.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._begun: set[Future[Any]] = set()

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """``await function(*args)``, for a thread.

        It is cancelled with the run of the caller, and where the caller is interrupted. Raises
        CancelledError where it was cancelled, or ``close`` has been called.
        """
        return waited(lambda future: self._begin(lambda: function(*args), future))

    def start(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        """Begin ``await function(*args)`` and return its future; to cancel that cancels it.

        The call goes on where the future is dropped.
        """
        future: Future[T] = Future()
        self._begun.add(future)  # a loop holds its tasks weakly
        future.add_done_callback(self._begun.discard)
        self._begin(lambda: function(*args), future)
        return future

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop. Its thread begins, where it has not. Raise CancelledError after
        ``close``."""
        with self._lock:
            self._ensure()
            return self._loop

    def iterate(self, function: Callable[..., AsyncGenerator[T, None]], *args: Any) -> Iterator[T]:
        """The items of ``function(*args)``, as ``run``; to leave them cancels it."""
        return drawn(self._begin, lambda: function(*args))

    def close(self) -> None:
        """End the thread; calling it again does nothing."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._end.detach()  # a finalizer that is called as the process ends does nothing
            _end(self._loop, self._ended)
            thread.join(CLOSE_SECONDS)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
        """Schedule a call. Called locked, so that no call reaches a loop that is ending."""
        with self._lock:
            self._ensure()
            begin(self._loop, make, future)

    def _ensure(self) -> None:
        if self._closed:
            raise CancelledError
        if self._thread is None or not self._thread.is_alive():  # as after os.fork
            self._start()

    def _start(self) -> None:
        loop, ended = asyncio.new_event_loop(), asyncio.Event()
        thread = threading.Thread(target=_serve, args=(loop, ended), name="sglang-api", daemon=True)
        thread.start()
        self._loop, self._ended, self._thread = loop, ended, thread
        self._end = weakref.finalize(self, _end, loop, ended)
        self._end.atexit = False


def _serve(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(ended.wait())
    finally:
        finish(loop)


def _end(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(ended.set)


def begin(
    loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, T]], future: Future[T]
) -> None:
    """Run ``make()`` on another thread's loop, for ``future``; to cancel that cancels it.

    The future exists before the call begins, so that an interrupted caller can cancel it.
    """
    loop.call_soon_threadsafe(_run, loop, make, future)


def _run(
    loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, T]], future: Future[T]
) -> None:
    if future.cancelled():
        return
    try:
        task = loop.create_task(make())
    except Exception as error:
        future.set_exception(error)
        return

    def cancel(done: Future[T]) -> None:
        if done.cancelled():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)

    def settle(done: asyncio.Task[T]) -> None:
        if done.cancelled():
            future.cancel()
        error = None if done.cancelled() else done.exception()
        if not future.set_running_or_notify_cancel():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    future.add_done_callback(cancel)
    task.add_done_callback(settle)


def waited(start: Callable[[Future[T]], None]) -> T:
    """The result of a call on another thread's loop, for a thread; ``start`` begins it.

    The call is cancelled with the run of the caller, and where the caller is interrupted.
    """
    future: Future[T] = Future()
    try:
        start(future)
        with aborted_by(future.cancel):
            return future.result()
    finally:
        future.cancel()  # does nothing to one that is done


def drawn(
    start: Callable[[Callable[[], Coroutine[Any, Any, None]], Future[None]], None],
    make: Callable[[], AsyncGenerator[T, None]],
) -> Iterator[T]:
    """The items of a generator on another thread's loop, as ``waited``; to leave them cancels it.

    ``start`` begins on that loop what it is given.
    """
    items: SimpleQueue[Any] = SimpleQueue()

    async def pump() -> None:
        async with aclosing(make()) as source:
            async for item in source:
                items.put(item)

    future: Future[None] = Future()
    future.add_done_callback(lambda _: items.put(_END))
    try:
        start(pump, future)
        with aborted_by(future.cancel):
            while (item := items.get()) is not _END:
                yield item
        future.result()
    finally:
        future.cancel()


def finish(loop: asyncio.AbstractEventLoop) -> None:
    """End a loop that has stopped: what still runs on it is cancelled."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
