"""LoopThread: an event loop in a dedicated thread, which runs the calls of other threads."""

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
    """The thread starts at the first call, and ends after ``close`` or when this object is garbage.

    At its end, running tasks are cancelled and the loop's asynchronous generators are closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._begun: set[Future[Any]] = set()

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run ``await function(*args)`` on the loop, and wait for its result in this thread.

        Cancellation of the caller's run, or an interrupt of the caller, cancels the call. Raises
        CancelledError for a cancelled call, and after ``close``.
        """
        return waited(lambda future: self._begin(lambda: function(*args), future))

    def start(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        """Begin ``await function(*args)``. Return a future, whose cancellation cancels the call.

        The call continues if the future is dropped.
        """
        future: Future[T] = Future()
        self._begun.add(future)  # a loop has only weak references to its tasks
        future.add_done_callback(self._begun.discard)
        self._begin(lambda: function(*args), future)
        return future

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop. Starts the thread if it is not running. Raises CancelledError after
        ``close``."""
        with self._lock:
            self._ensure()
            return self._loop

    def iterate(self, function: Callable[..., AsyncGenerator[T, None]], *args: Any) -> Iterator[T]:
        """Yield the items of ``function(*args)``, run as in ``run``; leaving early cancels it."""
        return drawn(self._begin, lambda: function(*args))

    def close(self) -> None:
        """End the thread. A second call has no effect."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._end.detach()  # the finalizer must not run later
            _end(self._loop, self._ended)
            thread.join(CLOSE_SECONDS)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
        """Schedule a call under the lock, so that no call reaches a loop that is ending."""
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
    """Run ``make()`` on another thread's loop; set its result on ``future``.

    Cancelling ``future`` cancels the call. An interrupted caller can do so, because the future
    exists before the call begins."""
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
    """Wait in this thread for a call on another thread's loop. ``start(future)`` begins the call.

    Cancellation of the caller's run, or an interrupt of the caller, cancels the call.
    """
    future: Future[T] = Future()
    try:
        start(future)
        with aborted_by(future.cancel):
            return future.result()
    finally:
        future.cancel()  # no effect on a call that is done


def drawn(
    start: Callable[[Callable[[], Coroutine[Any, Any, None]], Future[None]], None],
    make: Callable[[], AsyncGenerator[T, None]],
) -> Iterator[T]:
    """Yield the items of ``make()``, a generator on another thread's loop, as in ``waited``.

    ``start(function, future)`` begins a call on that loop. Leaving the iteration cancels it.
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
    """Close a loop that has stopped; cancel its tasks first."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
