"""StreamExecutor: one state's queue of nodes, visited in order, and the readers of its results.

    submit ->  queue  ->  drain (in a worker, or here if nothing can block)  ->  Interpreter
                                                                                     |
    reader  <----------------------------------  Changes  <--------------------------+

At most one thread or task drains the queue at a time (``_busy``); only the drain changes the
stream. A variable is stored before its pending count falls, so readers see complete values. A
forked executor is ``_held`` until its parent reaches the fork. An executor whose next node is a
``Later`` is ``_parked`` until the node's sources are settled. ``_open``: the program runs in
another thread or task and may append more. The first failure ends the executor: complete values
stay readable, all other reads raise the failure.

With a ``loop`` in the run, drains are its tasks, without threads. ``_changed`` locks shared state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sglang.backend.base import Backend
from sglang.backend.cancel import Cancellation
from sglang.backend.worker_threads import WORKERS
from sglang.errors import SglangError, UnknownVariable
from sglang.ir.nodes import Flush, Node
from sglang.ir.params import GenParams
from sglang.ir.source_location import Location
from sglang.run.changes import Changes
from sglang.run.drive import adrive, drive
from sglang.run.failure import Failure
from sglang.run.interpreter import Interpreter, Steps
from sglang.run.live_nodes import Later, Startable, StartForks
from sglang.run.recording import Track, Visit
from sglang.run.run_scope import Run, in_loop
from sglang.run.stream import ForkPoint, Stream

NOWHERE = Location("", 0)


class StreamExecutor:
    """Queue and results of one state.

    Args:
        use_thread: False: the thread that appends a node also visits it.
        open: the program is still running in another thread or task and may append more.
        held: wait for ``start`` before any visit.
        inherited: names of the variables that the parent has, or will have, at the fork.

    Attributes:
        track: the state's lane in the trace, None if the run is not recorded.
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
        self._changed = Changes()
        self.interpreter = Interpreter(
            backend,
            Stream(),
            defaults,
            self.run.usage,
            speculation=self.run.speculation,
            spec_tokens=self.run.spec_tokens,
            streaming=streaming,
            changed=self._changed.tell,
        )
        self.inherited = inherited
        self.use_thread = use_thread
        self.track: Track | None = None
        self.origin = ForkPoint()
        self._queue: deque[tuple[Node, Location]] = deque()
        self._pending: Counter[str] = Counter()
        self._busy, self._held, self._open, self._parked = False, held, open, False
        self._settled_sources = 0
        self._unsettled: list[str] = []
        self._readers = 0
        self._location = NOWHERE
        self.failure = self.run.enter(self)

    @property
    def stream(self) -> Stream:
        return self.interpreter.stream

    # Appending

    def submit(self, node: Node, location: Location) -> None:
        """Queue the atoms of ``node``. After a failure, atoms are dropped."""
        with self._changed:
            for atom in node.flat():
                self._pending.update(atom.names())
                if self.failure is None:
                    self._queue.append((atom, location))
            begin = bool(self._queue) and self._take()
        if begin:
            self._drain(inline=True)

    def _take(self) -> bool:
        """Claim the drain; False if it is claimed, held or parked. Called under the lock."""
        if self._busy or self._held or self._parked:
            return False
        self._busy = True
        return True

    def _ask_deferred(self) -> None:
        if self.stream.deferred and not self._queue and self._take():
            self._continue()

    def _next(self, inline: bool) -> tuple[Node, Location] | None:
        """Return the node to visit now, or None if this drain ends.

        A drain ends if no node is left, if the next node must be visited by another thread or
        task, or if its sources are not settled.
        """
        with self._changed:
            if not self._queue and self._readers and self.stream.deferred and not self.failure:
                self._queue.append((Flush(), self._location))
            if self.failure is not None or not self._queue:
                self._busy = False
                self._changed.tell()
                return None
            node, self._location = self._queue[0]
            if self.stream.deferred and isinstance(node, Later) and self._awaits_itself(node):
                node = Flush()
                self._queue.appendleft((node, self._location))
        if isinstance(node, Later) and not self._sources_settled(node):
            return None
        with self._changed:
            if self.failure is None and not (inline and self._elsewhere(node)):
                return self._queue.popleft()
        self._continue()
        return None

    def _awaits_itself(self, node: Later) -> bool:
        return any(source is self for source, _ in node.sources)

    def _elsewhere(self, node: Node) -> bool:
        """Return True if the visit may wait, so that the appending thread must not do it."""
        waits = isinstance(node, Later) or self.interpreter.blocks(node)
        return waits and (self.use_thread or self.run.loop is not None)

    def _continue(self) -> None:
        """Continue a claimed drain where it may wait: in the loop, a worker, or this thread."""
        if self.run.loop is not None:
            self.run.spawn(self._adrain)
        elif self.use_thread:
            WORKERS.submit(partial(self.run.context.copy().run, self._drain))
        else:
            self._drain()

    def _drain(self, inline: bool = False) -> None:
        while (item := self._next(inline)) is not None:
            node, location = item
            try:
                if (begun := self._visit(node, location)) is not None:
                    drive(*begun)
            except Exception as error:
                self.fail(error, location)
            except BaseException as error:
                self._stop(error, location)
                if inline:  # in the program's own thread
                    raise
                return
            else:
                self._settle(node)

    async def _adrain(self) -> None:
        while (item := self._next(inline=False)) is not None:
            node, location = item
            try:
                if (begun := self._visit(node, location)) is not None:
                    await adrive(*begun)
            except Exception as error:
                self.fail(error, location)
            except BaseException as error:
                self._stop(error, location)
                raise
            else:
                self._settle(node)

    def _visit(
        self, node: Node, location: Location
    ) -> tuple[Steps, Backend, Cancellation, Visit | None] | None:
        """Return the arguments of ``drive``, or None if the node needs no call and is done."""
        self.interpreter.location = location
        step = node.then() if isinstance(node, Later) else node
        if (steps := self.interpreter.visit(step)) is None:
            return None
        names, track = step.names(), self.track
        visit = None if track is None else track.visit(names, location, self.stream)
        return steps, self.interpreter.backend, self.run.cancellation, visit

    def _stop(self, error: BaseException, location: Location) -> None:
        """End after an interrupt or a cancellation, and give up the drain."""
        self.fail(error, location)
        with self._changed:
            self._busy = False
            self._changed.tell()

    def _settle(self, node: Node) -> None:
        """Mark the variables of ``node`` as complete, unless gens are deferred."""
        names = [*self._unsettled, *node.names()]
        if self.stream.deferred:
            self._unsettled = names
            return
        if names:
            self._unsettled = []
            with self._changed:
                self._pending.subtract(names)
                for name in names:
                    self.stream.partial.pop(name, None)
        if names or self._changed.listeners or self.interpreter.streaming:
            self._changed.tell()

    # Parking until sources in other executors are settled

    def _sources_settled(self, node: Later) -> bool:
        """Return True if the node's sources are settled; otherwise park until a source changes.

        Sources are queried without this executor's lock, as executors may wait for each other.
        """
        with self._changed:
            self._busy, self._parked = False, True
        while self._settled_sources < len(node.sources):
            source, name = node.sources[self._settled_sources]
            if not source.call_when_settled(name, self._resume):
                return False
            self._settled_sources += 1
        with self._changed:
            self._busy, self._parked, self._settled_sources = True, False, 0
        return True

    def _resume(self) -> None:
        """Schedule ``_wake``. Called under a source's lock."""
        if self.run.loop is not None:
            self.run.loop.call_soon_threadsafe(self._wake)
        else:
            WORKERS.submit(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._parked = False
            begin = self._take()
        if begin:
            self._continue()

    # Forking

    def fork(self, size: int, location: Location, copy: bool = False) -> list[StreamExecutor]:
        """Return ``size`` executors that start with a copy of the stream at this point.

        ``copy``: an internal snapshot, which shares this executor's ``track``.
        """
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
        if self.track is not None:
            for index, child in enumerate(children):
                child.track = self.track if copy else self.track.fork(index, location)
        self.submit(StartForks(tuple(children)), location)
        if self.failure is not None:
            for child in children:
                child.end(self.failure)
        return children

    def start(self, stream: Stream) -> None:
        """Start with ``stream``. The parent calls this method when it visits the fork."""
        with self._changed:
            if self.failure is not None:
                return
            self.interpreter.stream = stream
            self.origin = stream.here()
            self._held = False
            if self.track is not None:
                self.track.start()
            begin = bool(self._queue) and self._take()
            self._changed.tell()
        if begin:
            self._continue()

    # Ending

    def fail(self, error: BaseException, location: Location | None) -> None:
        """End this executor and its forks that have not started. Later calls have no effect."""
        failure = Failure(error, location)
        ending: list[Startable] = [self]
        while ending:
            ending += ending.pop().end(failure)

    def end(self, failure: Failure) -> list[Startable]:
        """End with ``failure``. Return the forks that will never start."""
        with self._changed:
            if self.failure is not None:
                self._changed.tell()  # the run may have been cancelled since then
                return []
            busy, self.failure = not self._idle(), failure
            self._held = False
            dropped = [node for node, _ in self._queue if isinstance(node, StartForks)]
            self._queue.clear()
            self._changed.tell()
        self.run.failures.append(failure)
        if self.track is not None and busy:
            self.track.fail(failure)
        return [child for node in dropped for child in node.children]

    def close(self) -> None:
        """Note that the program, which ran in another thread or task, has ended."""
        with self._changed:
            self._open = False
            self._changed.tell()

    # State

    def _idle(self) -> bool:
        return not (self._queue or self._busy or self._held or self.stream.deferred)

    def others_append(self) -> bool:
        """Return True if the program is still running in another thread or task."""
        return self._open and not self.run.is_inside()

    def _ended(self) -> bool:
        """Return True if all appended nodes are done, or after a failure the drain has ended."""
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
            return self.stream.text_of(name), True
        return self.stream.partial.get(name, ""), finished and not self._pending[name]

    def declared(self, name: str) -> bool:
        """Return True if the variable exists or a queued node will make it."""
        with self._changed:
            return (
                name in self.stream.variables
                or self._pending[name] > 0
                or (self._held and name in self.inherited)
            )

    def coming(self) -> list[str] | None:
        """Return the names of incomplete variables; None if the executor has ended."""
        with self._changed:
            if self._ended():
                return None
            return [name for name, count in self._pending.items() if count]

    def check(self) -> None:
        """Raise the exception of the failure, if there is one."""
        if self.failure is not None:
            raise self.failure.exception(self.others_append())

    # Waiting in a thread

    def wait(self) -> None:
        """Wait until all appended nodes are done, or the executor has failed and stopped."""
        self._wait_for(self._ended)

    def wait_for_program(self) -> None:
        """Wait until the program has ended. Raise the error that cancelled the run, if any."""
        self._wait_for(lambda: self.run.cancelled is not None or not self.others_append())
        self.run.check()

    def value(self, name: str) -> Any:
        """Wait for a variable and return its value. Raise ProgramError, or UnknownVariable."""
        self._wait_for(lambda: self._settled(name))
        return self._read(name, self.stream.variables)

    def meta(self, name: str) -> Any:
        """Wait for a variable; return its meta_info, or {}. Raise the errors of ``value``."""
        self._wait_for(lambda: self._settled(name))
        return self._read(name, self.stream.meta, {})

    def watch(self, name: str | None) -> Iterator[tuple[str, bool]]:
        """Yield (text so far, complete) of a variable (None: the state) whenever the text grows.
        Raise the errors of ``value``."""
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
        """Count a waiting reader and record its wait. Deferred gens are requested now."""
        with self._changed:
            self._readers += 1
            self._ask_deferred()
        wait = self.track.wait() if self.track is not None and self.run.is_inside() else None
        try:
            yield
        finally:
            if self.track is not None and wait is not None:
                self.track.close(wait)
            with self._changed:
                self._readers -= 1

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
        """Return (text so far, complete). Raise a failure once its earlier text was returned."""
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
        """Await as ``wait`` waits, without occupying a thread."""
        await self._wait_in_loop(self._ended)

    async def avalue(self, name: str) -> Any:
        """Return a variable as ``value`` does, awaited without occupying a thread."""
        await self._wait_in_loop(lambda: self._settled(name))
        return self._read(name, self.stream.variables)

    async def ameta(self, name: str) -> Any:
        """Return the meta_info as ``meta`` does, awaited without occupying a thread."""
        await self._wait_in_loop(lambda: self._settled(name))
        return self._read(name, self.stream.meta, {})

    async def awatch(self, name: str | None) -> AsyncIterator[tuple[str, bool]]:
        """Yield as ``watch`` does, without occupying a thread."""
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
        with self._reading():
            await self._changed.await_for(ready)

    def call_when_settled(self, name: str | None, call: Callable[[], None]) -> bool:
        """Return True if ``name`` (None: everything appended) is settled. Otherwise call ``call``
        once when it becomes settled, in any thread and under this executor's lock."""
        with self._changed:
            if self._at_rest(name):
                return True

            def listener() -> None:
                if self._at_rest(name):
                    self._changed.listeners.remove(listener)
                    self._readers -= 1
                    call()

            self._changed.listeners.append(listener)
            self._readers += 1
            self._ask_deferred()
            return False

    def _at_rest(self, name: str | None) -> bool:
        if self.failure is not None:
            return not self._busy
        return self._idle() if name is None else self._pending[name] == 0 and not self._held
