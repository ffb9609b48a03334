"""StreamExecutor: one state's queue of nodes, visited in order, and the waiting for their results.

    submit ->  queue  ->  drain (in a worker, or here if nothing can block)  ->  Interpreter
                                                                                     |
    reader  <----------------------  condition, listeners  <-------------------------+

At most one thread drains at a time (``_busy``), and only it touches the stream; readers see whole
values because a variable is stored before its pending count falls. A forked executor is ``_held``
until its parent reaches the Fork node. The first failure ends the executor: what was complete stays
readable, everything else raises it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakSet

from sglang.backend.base import Backend
from sglang.errors import Location, ProgramError, SglangError, UnknownVariable
from sglang.interpreter import Interpreter, Stream
from sglang.ir import Commit, Fork, Node
from sglang.params import GenParams
from sglang.usage import Usage
from sglang.workers import WORKERS

# An owner that is no thread: the program's thread has not begun yet.
NOBODY = -1


class Failure:
    """Why an executor has ended, and whether somebody has been told."""

    def __init__(self, error: BaseException, location: Location | None) -> None:
        self.error, self.location, self.seen = error, location, False

    def exception(self) -> BaseException:
        """A fresh exception each time, so that readers in several threads share no traceback.

        An error raised by the program itself (no location) is given back as it is.
        """
        self.seen = True
        if self.location is None or isinstance(self.error, ProgramError):
            return self.error
        kind = type(self.error).__name__
        message = str(self.error) or kind
        if not isinstance(self.error, SglangError):
            message = f"{kind}: {message}"
        raised = ProgramError(message, self.location)
        raised.__cause__ = self.error
        return raised


class Run:
    """What the executors of one run share.

    ``members`` holds nobody alive: who has work is held by its queue or its worker, and a fork that
    the program has dropped is forgotten when it is done. Its failure is kept in ``failures``.
    """

    def __init__(self) -> None:
        self.usage = Usage()
        self.members: WeakSet[StreamExecutor] = WeakSet()
        self.failures: list[Failure] = []


class StreamExecutor:
    """Executes one state.

    Args:
        use_thread: False visits every node where it is appended.
        open: the program is still running in another thread and may append more.
        held: wait for ``start`` before visiting anything.
    """

    def __init__(
        self,
        backend: Backend,
        defaults: GenParams,
        *,
        run: Run | None = None,
        streaming: bool = False,
        use_thread: bool = True,
        open: bool = False,
        held: bool = False,
        inherited: frozenset[str] = frozenset(),
    ) -> None:
        self.run = run or Run()
        self.run.members.add(self)
        self.interpreter = Interpreter(
            backend, Stream(), defaults, self.run.usage, streaming=streaming, changed=self._notify
        )
        self.use_thread = use_thread
        self.failure: Failure | None = None
        self.inherited = inherited
        self._held = held
        self._busy = False
        self._owner = NOBODY if open else None
        self._queue: deque[tuple[Node, Location]] = deque()
        self._pending: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    @property
    def stream(self) -> Stream:
        return self.interpreter.stream

    # Appending

    def submit(self, node: Node, location: Location) -> None:
        """Queue the atoms of ``node``; after a failure they are dropped."""
        with self._changed:
            for atom in node.flat():
                self._pending.update(atom.names())
                if self.failure is None:
                    self._queue.append((atom, location))
            idle = not (self._busy or self._held) and bool(self._queue)
            self._busy = self._busy or idle
        if idle:
            self._drain(inline=True)

    def _drain(self, inline: bool = False) -> None:
        """Visit until the queue is empty; handed to a worker where the thread must not block."""
        while True:
            with self._changed:
                if self.failure is not None or not self._queue:
                    self._busy = False
                    self._notify_locked()
                    return
                node, location = self._queue[0]
                if inline and self.use_thread and node.blocking:
                    break
                self._queue.popleft()
            try:
                self.interpreter.visit(node)
            except Exception as error:
                self.fail(error, location)
            except BaseException as error:
                self.fail(error, location)
                self._busy = False
                raise
            else:
                self._settle(node)
        WORKERS.submit(self._drain)

    def _settle(self, node: Node) -> None:
        names = node.names()
        if names:
            with self._changed:
                self._pending.subtract(names)
        if names or self._listeners or self.interpreter.streaming:
            self._notify()

    def fail(self, error: BaseException, location: Location | None) -> None:
        """End with ``error``, and so do forks that have not started. The first call counts."""
        failure = Failure(error, location)
        ending = [self]
        while ending:
            ending += ending.pop()._end(failure)

    def _end(self, failure: Failure) -> list[StreamExecutor]:
        """The forks that now never start."""
        with self._changed:
            if self.failure is not None:
                return []
            self.failure = failure
            self._held = False
            dropped = [node for node, _ in self._queue if isinstance(node, Fork)]
            self._queue.clear()
            self._notify_locked()
        self.run.failures.append(failure)
        return [child for node in dropped for child in node.children]

    # Forking

    def fork(self, size: int, location: Location) -> list[StreamExecutor]:
        """``size`` executors that begin, when this one gets there, with what it has written."""
        with self._changed:
            known = frozenset(self.stream.variables) | frozenset(+self._pending) | self.inherited
        children = [
            StreamExecutor(
                self.interpreter.backend,
                self.interpreter.defaults,
                run=self.run,
                streaming=self.interpreter.streaming,
                use_thread=self.use_thread,
                held=True,
                inherited=known,
            )
            for _ in range(size)
        ]
        if size > 1:
            self.submit(Commit(), location)
        self.submit(Fork(tuple(children)), location)
        if self.failure is not None:
            for child in children:
                child._end(self.failure)
        return children

    def start(self, stream: Stream) -> None:
        """Called by the parent's executor at the Fork node."""
        with self._changed:
            if self.failure is not None:
                return
            self.interpreter.stream = stream
            self._held = False
            begin = bool(self._queue) and not self._busy
            self._busy = self._busy or begin
            self._notify_locked()
        if begin:
            if self.use_thread:
                WORKERS.submit(self._drain)
            else:
                self._drain()

    # Reading

    def _idle(self) -> bool:
        return not (self._queue or self._busy or self._held)

    def wait(self) -> None:
        """Until everything appended is done, or the executor has failed and stands still."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    (self._idle() and not self._others_append())
                    or (self.failure is not None and not self._busy)
                )
            )

    def _others_append(self) -> bool:
        return self._owner is not None and self._owner != threading.get_ident()

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise self.failure.exception()

    def declared(self, name: str) -> bool:
        """Whether the variable exists or will."""
        with self._changed:
            return (
                name in self.stream.variables
                or self._pending[name] > 0
                or (self._held and name in self.inherited)
            )

    def value(self, name: str) -> Any:
        """Raises ProgramError, or UnknownVariable where the program makes no such variable."""
        return self._lookup(name, self._stored)

    def meta(self, name: str) -> Any:
        """meta_info of a variable, {} where it has none; raises as ``value`` does."""
        return self._lookup(name, lambda name: self.stream.meta.get(name, {}))

    def _stored(self, name: str) -> Any:
        return self.stream.variables[name]

    def _lookup(self, name: str, get: Callable[[str], Any]) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._settled(name))
            if name in self.stream.variables and self._pending[name] == 0:
                return get(name)
            known = sorted({*self.stream.variables, *+self._pending})
        self.check()
        raise UnknownVariable(f"no variable {name!r} in this state; it has {known}")

    def _settled(self, name: str) -> bool:
        if self.failure is not None:
            return True
        if self._pending[name] > 0 or self._held:
            return False
        return name in self.stream.variables or not self._others_append()

    def watch(self, name: str | None) -> Iterator[tuple[str, bool]]:
        """Text so far of a variable, or of the whole state, whenever it has grown; and whether
        that is all. Raises as ``value`` does.
        """
        last: str | None = None
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._seen, name, last))
            text, done = self.snapshot(name)
            if text != last or done:
                yield text, done
            if done:
                return
            last = text

    def _seen(self, name: str | None, last: str | None) -> bool:
        if self.failure is not None:
            return True
        text, done = self._look(name)
        return done or text != (last or "")

    def snapshot(self, name: str | None) -> tuple[str, bool]:
        """Text so far and whether it is complete. Raises as ``value`` does."""
        with self._changed:
            text, done = self._look(name)
            failed = self.failure is not None and not done
        if failed:
            self.check()
        if done and name is not None and name not in self.stream.variables:
            raise UnknownVariable(f"the program made no variable {name!r}")
        return text, done

    def _look(self, name: str | None) -> tuple[str, bool]:
        finished = self._idle() and not self._others_append() and self.failure is None
        if name is None:
            return self.stream.text, finished
        if self._pending[name] == 0 and name in self.stream.variables:
            value = self.stream.variables[name]
            return (value if isinstance(value, str) else str(value)), True
        return self.stream.partial.get(name, ""), finished and not self._pending[name]

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called, in any thread, on every change; the result undoes it."""
        with self._changed:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _notify(self) -> None:
        with self._changed:
            self._notify_locked()

    def _notify_locked(self) -> None:
        self._changed.notify_all()
        for listener in tuple(self._listeners):
            listener()

    # Ending

    def close(self) -> None:
        """The program will append no more (where it runs in a thread of its own)."""
        with self._changed:
            self._owner = None
            self._notify_locked()

    def adopt(self) -> None:
        """The calling thread is the one the program runs in."""
        self._owner = threading.get_ident()

    def finish(self) -> None:
        """Wait for this executor and its forks; raise what has failed.

        A fork's failure that the program has already seen is the program's business.
        """
        for member in list(self.run.members):
            member.wait()
        self.check()
        for failure in self.run.failures:
            if not failure.seen:
                raise failure.exception()

    def cancel(self, error: BaseException) -> None:
        """Drop what has not begun, here and in the forks: the program has raised ``error``."""
        for member in list(self.run.members):
            member.fail(error, None)
