"""Results: the reading half of an executor: waiting for variables and text, in threads or in an
event loop.

Everything here happens under one condition. What an executor is doing is told by four facts:
``_queue`` (appended, not visited), ``_busy`` (somebody is visiting), ``_held`` (a fork whose parent
has not come to it) and ``_open`` (the program itself goes on elsewhere and may append more).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sglang.errors import SglangError, UnknownVariable
from sglang.ir.location import Location
from sglang.ir.nodes import Node
from sglang.run.failure import Failure
from sglang.run.interpreter import Interpreter
from sglang.run.recording import Track
from sglang.run.run_scope import Run, in_loop
from sglang.run.stream import Stream


class Results:
    """What one state has made so far, and how to wait for the rest. ``track`` records it, where it
    is recorded."""

    def __init__(self, run: Run, interpreter: Interpreter, inherited: frozenset[str]) -> None:
        self.run = run
        self.interpreter = interpreter
        self.inherited = inherited
        self.track: Track | None = None
        self.failure: Failure | None = None
        self._queue: deque[tuple[Node, Location]] = deque()
        self._busy = self._held = self._open = False
        self._pending: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._readers = 0

    @property
    def stream(self) -> Stream:
        return self.interpreter.stream

    # What is there

    def _idle(self) -> bool:
        return not (self._queue or self._busy or self._held or self.stream.deferred)

    def others_append(self) -> bool:
        """Whether the program goes on elsewhere."""
        return self._open and not self.run.is_inside()

    def _ended(self) -> bool:
        """Everything appended is done, or the executor has failed and stands still."""
        if self.failure is not None:
            return not self._busy
        return self._idle() and not self.others_append()

    def _settled(self, name: str) -> bool:
        if self.failure is not None:
            return True
        if self._pending[name] > 0 or self._held:
            return False
        return name in self.stream.variables or not self.others_append()

    def _look(self, name: str | None) -> tuple[str, bool]:
        finished = self._idle() and not self.others_append() and self.failure is None
        if name is None:
            return self.stream.text, finished
        if self._pending[name] == 0 and name in self.stream.variables:
            return _text_of(self.stream.variables[name]), True
        return self.stream.partial.get(name, ""), finished and not self._pending[name]

    def declared(self, name: str) -> bool:
        """Whether the variable exists or will."""
        with self._changed:
            return (
                name in self.stream.variables
                or self._pending[name] > 0
                or (self._held and name in self.inherited)
            )

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise self.failure.exception()

    # Waiting in a thread

    def wait(self) -> None:
        """Until everything appended is done, or the executor has failed and stands still."""
        self._wait_for(self._ended)

    def value(self, name: str) -> Any:
        """Raises ProgramError, or UnknownVariable where the program makes no such variable."""
        self._wait_for(lambda: self._settled(name))
        return self._read(name, self.stream.variables)

    def meta(self, name: str) -> Any:
        """meta_info of a variable, {} where it has none; raises as ``value`` does."""
        self._wait_for(lambda: self._settled(name))
        return self._read(name, self.stream.meta, {})

    def watch(self, name: str | None) -> Iterator[tuple[str, bool]]:
        """Text so far of a variable, or of the whole state, whenever it has grown; and whether
        that is all. Raises as ``value`` does.
        """
        last: str | None = None
        while True:
            self._wait_for(partial(self._seen, name, last))
            text, done = self._grown(name, last)
            if text != last or done:
                yield text, done
            if done:
                return
            last = text

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            if ready():
                return
            if self.run.loop is not None and in_loop(self.run.loop):
                raise SglangError(
                    "reading would block the event loop that has to make the value; "
                    "use await: s.aget(name), s.atext(), s.ajoin() of forks, ..."
                )
            with self._reading():
                self._changed.wait_for(ready)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Somebody waits: what speculation has put off is asked for now."""
        with self._changed:
            self._readers += 1
            self._ask_deferred()
        waits = self.track is not None and self.run.is_inside()
        wait = self.track.wait() if self.track is not None and waits else None
        try:
            yield
        finally:
            if self.track is not None and wait is not None:
                self.track.close(wait)
            with self._changed:
                self._readers -= 1

    def _ask_deferred(self) -> None:
        raise NotImplementedError

    def _read(self, name: str, values: dict[str, Any], default: Any = None) -> Any:
        with self._changed:
            if name in self.stream.variables and self._pending[name] == 0:
                return values.get(name, default)
            known = sorted({*self.stream.variables, *+self._pending})
        self.check()
        raise UnknownVariable(f"no variable {name!r} in this state; it has {known}")

    def _seen(self, name: str | None, last: str | None) -> bool:
        if self.failure is not None:
            return True
        text, done = self._look(name)
        return done or text != (last or "")

    def _grown(self, name: str | None, last: str | None) -> tuple[str, bool]:
        """Text so far and whether it is complete. What was written before a failure is given
        before the failure is raised."""
        with self._changed:
            text, done = self._look(name)
            failed = self.failure is not None and not done and text == (last or "")
        if failed:
            self.check()
        if done and name is not None and name not in self.stream.variables:
            raise UnknownVariable(f"the program made no variable {name!r}")
        return text, done

    # Waiting in an event loop

    async def await_end(self) -> None:
        """``wait``, holding no thread."""
        await self._wait_in_loop(self._ended)

    async def avalue(self, name: str) -> Any:
        """``value``, holding no thread."""
        await self._wait_in_loop(lambda: self._settled(name))
        return self._read(name, self.stream.variables)

    async def ameta(self, name: str) -> Any:
        """``meta``, holding no thread."""
        await self._wait_in_loop(lambda: self._settled(name))
        return self._read(name, self.stream.meta, {})

    async def awatch(self, name: str | None) -> AsyncIterator[tuple[str, bool]]:
        """``watch``, holding no thread."""
        last: str | None = None
        while True:
            await self._wait_in_loop(partial(self._seen, name, last))
            text, done = self._grown(name, last)
            if text != last or done:
                yield text, done
            if done:
                return
            last = text

    async def _wait_in_loop(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            if ready():
                return
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        stop = self.listen(lambda: _signal(loop, changed))
        try:
            with self._reading():
                while not self._is(ready):
                    await changed.wait()
                    changed.clear()
        finally:
            stop()

    def _is(self, ready: Callable[[], bool]) -> bool:
        with self._changed:
            return ready()

    # Being told

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called, in any thread, on every change; the result undoes it."""
        with self._changed:
            self._listeners.append(listener)

        def undo() -> None:
            with self._changed:
                self._listeners.remove(listener)

        return undo

    def call_when_settled(self, name: str | None, call: Callable[[], None]) -> bool:
        """True if ``name`` (None: all that was appended) is settled; else ``call`` is called once
        when it is, in any thread and under this executor's lock."""
        with self._changed:
            if self._at_rest(name):
                return True

            def listener() -> None:
                if self._at_rest(name):
                    self._listeners.remove(listener)
                    self._readers -= 1
                    call()

            self._listeners.append(listener)
            self._readers += 1
            self._ask_deferred()
            return False

    def _at_rest(self, name: str | None) -> bool:
        if self.failure is not None:
            return not self._busy
        return self._idle() if name is None else self._pending[name] == 0 and not self._held

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
            for listener in tuple(self._listeners):
                listener()


def _signal(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if in_loop(loop):
        event.set()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(event.set)


def _text_of(value: Any) -> str:
    """A text as it is; of several, the first, which is the one that goes on."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    return value if isinstance(value, str) else str(value)
