"""Changes: a condition that threads and event loops wait on, and that calls listeners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from sglang.run.run_scope import in_loop


class Changes(threading.Condition):
    """Lock and condition of one executor. A change calls all ``listeners`` under the lock."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Callable[[], None]] = []

    def tell(self) -> None:
        """Report a change: wake the waiting threads and call the listeners."""
        with self:
            self.notify_all()
            for listener in tuple(self.listeners):
                listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` on every change, in any thread. Return a function that removes it."""
        with self:
            self.listeners.append(listener)

        def undo() -> None:
            with self:
                self.listeners.remove(listener)

        return undo

    async def await_for(self, ready: Callable[[], bool]) -> None:
        """Wait in an event loop until ``ready()``, without occupying a thread."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        stop = self.listen(lambda: _signal(loop, changed))
        try:
            while not self._is(ready):
                await changed.wait()
                changed.clear()
        finally:
            stop()

    def _is(self, ready: Callable[[], bool]) -> bool:
        with self:
            return ready()


def _signal(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if in_loop(loop):
        event.set()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
