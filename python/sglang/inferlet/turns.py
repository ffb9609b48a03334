"""Turns: the event loop of one program, which waits by ending its turn.

    turn(answers) -> calls

A turn runs all tasks until each waits for the answer to a call, and returns the calls that they
made. There is no clock, socket or thread: a run is a function of its arguments and answers.
``asyncio.sleep`` becomes a call ``sleep``.
"""

from __future__ import annotations

import asyncio
import traceback
from asyncio import events
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

CallData = dict[str, Any]


class CallError(RuntimeError):
    """A call was refused. ``code``: "invalid", "denied", "overloaded", "lost" or another."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _NoSelector:
    """Nothing of the operating system is waited for."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class Turns(asyncio.BaseEventLoop):
    """One program's tasks and calls."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._clock = 0.0
        self._wakes = 0.0  # moment that the open `sleep` ends
        self._made: list[CallData] = []
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._main: asyncio.Task[Any] | None = None
        self._exited = False
        self.set_exception_handler(self._unhandled)

    def emit(self, call: str, /, **fields: Any) -> int:
        """Make a call; its number."""
        return self.put({"call": call, **fields})

    def ask(self, call: str, /, **fields: Any) -> asyncio.Future[Any]:
        """Make a call; its answer, to be awaited. That raises CallError where it was refused."""
        return self.put_awaited({"call": call, **fields})

    def put(self, call: CallData) -> int:
        """Make a call that lacks its number alone; its number."""
        self._count += 1
        call["id"] = self._count
        self._made.append(call)
        return self._count

    def put_awaited(self, call: CallData) -> asyncio.Future[Any]:
        """Make such a call; its answer, as that of ``ask``."""
        future: asyncio.Future[Any] = asyncio.Future(loop=self)
        self._open[self.put(call)] = future
        return future

    def start(self, main: Callable[[], Awaitable[Any]]) -> list[CallData]:
        """The first turn of a program; its calls."""

        async def run() -> Any:
            return await main()

        self._main = self.create_task(run())
        return self.turn(())

    def turn(self, answers: Iterable[CallData]) -> list[CallData]:
        """Go on with answers: {"id", "value"}, or {"id", "error": {"code", "message"}}."""
        for answer in answers:
            future = self._open.pop(answer["id"], None)
            if future is not None and not future.done():
                error = answer.get("error")
                if error is None:
                    future.set_result(answer.get("value"))
                else:
                    future.set_exception(CallError(error["code"], error["message"]))
        self._drain()
        self._finish()
        return self.made()

    def made(self) -> list[CallData]:
        """Calls that were made and not returned by a turn yet."""
        calls, self._made = self._made, []
        return calls

    def restore(self, calls: list[CallData]) -> None:
        """Return calls with the next turn that a turn has returned already."""
        self._made[:0] = calls

    def time(self) -> float:
        """Seconds that this program has slept, so that timers end in their order."""
        return self._clock

    def _drain(self) -> None:
        outer = events._get_running_loop()
        events._set_running_loop(self)
        ready = self._ready  # type: ignore[attr-defined]
        try:
            while ready:
                if self._scheduled:  # type: ignore[attr-defined]
                    self._run_once()  # type: ignore[attr-defined]
                    continue
                for _ in range(len(ready)):  # as that does, without a look at the time
                    handle = ready.popleft()
                    if not handle._cancelled:
                        handle._run()
            if self._scheduled:  # type: ignore[attr-defined]
                self._sleep()
        finally:
            events._set_running_loop(outer)

    def _sleep(self) -> None:
        """Have a call end when the first timer does."""
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if not timers or (self._clock < self._wakes <= min(timers)):
            return
        moment = self._wakes = min(timers)
        future = self.ask("sleep", seconds=max(0.0, moment - self._clock))
        future.add_done_callback(lambda _: self._wake(moment))

    def _wake(self, moment: float) -> None:
        self._clock = max(self._clock, moment)
        self._run_timers()

    def _run_timers(self) -> None:
        self.call_soon(lambda: None)  # the loop looks at its timers once more

    def _finish(self) -> None:
        if self._main is None or not self._main.done() or self._exited:
            return
        self._exited = True
        if self._main.cancelled():
            self.emit("exit", error="the program's main task was cancelled")
            return
        error = self._main.exception()
        if error is not None:
            self.emit("exit", error=told(error))
            return
        if self._main.result() is not None:
            self.emit("set_return", value=self._main.result())
        self.emit("exit")

    def _unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = told(error) if error else str(context.get("message"))
        self.emit("log", message=text)

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from a selector."""

    def _write_to_self(self) -> None:
        """No other thread wakes this loop."""


def told(error: BaseException) -> str:
    """The traceback of ``error``. Half a surrogate pair, which no call can carry, is escaped."""
    text = "".join(traceback.format_exception(error))
    return text.encode("utf-8", "backslashreplace").decode()
