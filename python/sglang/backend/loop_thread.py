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

from sglang.cancel import aborted_by

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

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """``await function(*args)``, for a thread.

        It is cancelled with the run of the caller, and where the caller is interrupted. Raises
        CancelledError where it was cancelled, or ``close`` has been called.
        """
        return waited(self._submit(lambda: function(*args)))

    def iterate(self, function: Callable[..., AsyncGenerator[T, None]], *args: Any) -> Iterator[T]:
        """The items of ``function(*args)``, as ``run``; to leave them cancels it."""
        return drawn(self._submit, lambda: function(*args))

    def close(self) -> None:
        """End the thread; calling it again does nothing."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._end()
            thread.join(CLOSE_SECONDS)

    def _submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Under the lock, so that nothing comes to a loop that is ending already."""
        with self._lock:
            if self._closed:
                raise CancelledError
            if self._thread is None or not self._thread.is_alive():  # as after os.fork
                self._start()
            return asyncio.run_coroutine_threadsafe(make(), self._loop)

    def _start(self) -> None:
        loop, ended = asyncio.new_event_loop(), asyncio.Event()
        thread = threading.Thread(target=_serve, args=(loop, ended), name="sglang-api", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread
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


def waited(future: Future[T]) -> T:
    """The result of a call on another thread's loop, for a thread.

    The call is cancelled with the run of the caller, and where the caller is interrupted.
    """
    try:
        with aborted_by(future.cancel):
            return future.result()
    finally:
        future.cancel()  # does nothing to one that is done


def drawn(
    submit: Callable[[Callable[[], Coroutine[Any, Any, None]]], Future[None]],
    make: Callable[[], AsyncGenerator[T, None]],
) -> Iterator[T]:
    """The items of a generator on another thread's loop, as ``waited``; to leave them cancels it.

    ``submit`` starts the coroutine of what it is given on that loop.
    """
    items: SimpleQueue[Any] = SimpleQueue()

    async def pump() -> None:
        async with aclosing(make()) as source:
            async for item in source:
                items.put(item)

    future = submit(pump)
    future.add_done_callback(lambda _: items.put(_END))
    try:
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
