"""StreamExecutor: one state's queue of nodes, visited in order.

    submit ->  queue  ->  drain (in a worker, or here if nothing can block)  ->  Interpreter
                                                                                     |
    reader  <----------------------  condition, listeners  <-------------------------+

At most one thread or task drains at a time (``_busy``), and only it touches the stream; readers see
whole values because a variable is stored before its pending count falls. A forked executor is
``_held`` until its parent reaches the Fork node; one whose next node is a ``Later`` rests until the
sources are settled. The first failure ends the executor: what was complete stays readable,
everything else raises it.

With a ``loop`` in its run, draining is a task of that event loop and no thread is used.
"""

from __future__ import annotations

from sglang.backend.base import Backend
from sglang.backend.workers import WORKERS
from sglang.ir.location import Location
from sglang.ir.nodes import Flush, Node
from sglang.ir.params import GenParams
from sglang.run.drive import adrive, drive
from sglang.run.failure import Failure
from sglang.run.interpreter import Interpreter
from sglang.run.live_nodes import Branch, Later, StartForks
from sglang.run.recording import Visit
from sglang.run.results import Results
from sglang.run.run_scope import Run
from sglang.run.stream import Origin, Stream

NOWHERE = Location("", 0)


class StreamExecutor(Results):
    """Executes one state.

    Args:
        use_thread: False visits every node where it is appended.
        open: the program is still running in another thread or task and may append more.
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
        run = run or Run()
        interpreter = Interpreter(
            backend,
            Stream(),
            defaults,
            run.usage,
            speculation=run.speculation,
            spec_tokens=run.spec_tokens,
            streaming=streaming,
            changed=self._notify,
        )
        super().__init__(run, interpreter, inherited)
        self.failure = run.enter(self)
        self.use_thread = use_thread
        self._held, self._open = held, open
        self._parked = False
        self._settled_sources = 0
        self._put_off: list[str] = []
        self._location = NOWHERE
        self.origin = Origin()

    # Appending

    def submit(self, node: Node, location: Location) -> None:
        """Queue the atoms of ``node``; after a failure they are dropped."""
        with self._changed:
            for atom in node.flat():
                self._pending.update(atom.names())
                if self.failure is None:
                    self._queue.append((atom, location))
            begin = bool(self._queue) and self._take()
        if begin:
            self._drain(inline=True)

    def _take(self) -> bool:
        """Become the one who drains, where nobody does and nothing hinders. Under the lock."""
        if self._busy or self._held or self._parked:
            return False
        self._busy = True
        return True

    def _ask_deferred(self) -> None:
        if self.stream.deferred and not self._queue and self._take():
            self._continue()

    def _next(self, inline: bool) -> tuple[Node, Location] | None:
        """The node to visit now, or None where this drain ends: there is none, it is not to be
        waited for here, or its sources are not settled."""
        with self._changed:
            if not self._queue and self._readers and self.stream.deferred and not self.failure:
                self._queue.append((Flush(), self._location))
            if self.failure is not None or not self._queue:
                self._busy = False
                self._notify()
                return None
            node, self._location = self._queue[0]
            if isinstance(node, Later) and self.stream.deferred and self._awaits_itself(node):
                node = Flush()
                self._queue.appendleft((node, self._location))
        if isinstance(node, Later) and not self._sources_settled(node):
            return None
        with self._changed:
            if self.failure is None and not (inline and self._elsewhere(node)):
                return self._queue.popleft()
        self._continue()
        return None

    def _elsewhere(self, node: Node) -> bool:
        """Whether visiting may wait, and so must not be done by the thread that appends."""
        waits = isinstance(node, Later) or self.interpreter.blocks(node)
        return waits and (self.use_thread or self.run.loop is not None)

    def _continue(self) -> None:
        """Go on draining where waiting hinders nobody; this executor is marked busy."""
        if self.run.loop is not None:
            self.run.spawn(self._adrain)
        elif self.use_thread:
            WORKERS.submit(self._drain)
        else:
            self._drain()

    def _drain(self, inline: bool = False) -> None:
        while (item := self._next(inline)) is not None:
            node, location = item
            try:
                self.interpreter.location = location
                step = node.then() if isinstance(node, Later) else node
                if (steps := self.interpreter.visit(step)) is not None:
                    visit = None if self.track is None else self._watched(step)
                    drive(steps, self.interpreter.backend, self.run.cancellation, visit)
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
                self.interpreter.location = location
                step = node.then() if isinstance(node, Later) else node
                if (steps := self.interpreter.visit(step)) is not None:
                    visit = None if self.track is None else self._watched(step)
                    await adrive(steps, self.interpreter.backend, self.run.cancellation, visit)
            except Exception as error:
                self.fail(error, location)
            except BaseException as error:
                self._stop(error, location)
                raise
            else:
                self._settle(node)

    def _watched(self, node: Node) -> Visit:
        """Records the visit of a node."""
        assert self.track is not None
        return self.track.visit(node.names(), self._location, self.stream)

    def _stop(self, error: BaseException, location: Location) -> None:
        """An interrupt or a cancellation: nobody drains any more."""
        self.fail(error, location)
        with self._changed:
            self._busy = False
            self._notify()

    def _settle(self, node: Node) -> None:
        """The variables of ``node`` are made, unless its gens have been put off."""
        names = [*self._put_off, *node.names()]
        if self.stream.deferred:
            self._put_off = names
            return
        if names:
            self._put_off = []
            with self._changed:
                self._pending.subtract(names)
                for name in names:
                    self.stream.partial.pop(name, None)
        if names or self._listeners or self.interpreter.streaming:
            self._notify()

    # Resting until other executors have made something

    def _sources_settled(self, node: Later) -> bool:
        """Whether they are; else this executor is parked until they may be.

        Asked without this executor's lock, as two may wait for variables of one another.
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

    def _awaits_itself(self, node: Later) -> bool:
        return any(source is self for source, _ in node.sources)

    def _resume(self) -> None:
        """Called under a source's lock: what follows is done elsewhere."""
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
        """``size`` executors that begin, when this one gets there, with what it has written.
        ``copy``: for the language's own use; it shows what this one has written by then."""
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
        """Called by the parent's executor at the Fork node."""
        with self._changed:
            if self.failure is not None:
                return
            self.interpreter.stream = stream
            self.origin = stream.here()
            self._held = False
            if self.track is not None:
                self.track.start()
            begin = bool(self._queue) and self._take()
            self._notify()
        if begin:
            self._continue()

    # Ending

    def fail(self, error: BaseException, location: Location | None) -> None:
        """End with ``error``, and so do forks that have not started. The first call counts."""
        failure = Failure(error, location)
        ending: list[Branch] = [self]
        while ending:
            ending += ending.pop().end(failure)

    def end(self, failure: Failure) -> list[Branch]:
        """End with ``failure``. Return the forks that will never start."""
        with self._changed:
            if self.failure is not None:
                return []
            busy, self.failure = not self._idle(), failure
            self._held = False
            dropped = [node for node, _ in self._queue if isinstance(node, StartForks)]
            self._queue.clear()
            self._notify()
        self.run.failures.append(failure)
        if self.track is not None and busy:
            self.track.fail(failure)
        return [child for node in dropped for child in node.children]

    def close(self) -> None:
        """The program will append no more (where it runs in a thread or task of its own)."""
        with self._changed:
            self._open = False
            self._notify()

    def finish(self) -> None:
        """Wait for this executor and its forks; raise what has failed.

        A failure that the program has already seen is the program's business.
        """
        for member in self.run.members():
            member.wait()
        self._raise_unseen()

    async def afinish(self) -> None:
        """``finish`` for an event loop."""
        for member in self.run.members():
            await member.await_end()
        self._raise_unseen()

    def _raise_unseen(self) -> None:
        for failure in self.run.failures:
            if not failure.seen:
                raise failure.exception()

    def cancel(self, error: BaseException) -> None:
        """Drop what has not begun, here and in the forks, and abort what has: the program has
        raised ``error``."""
        self.run.cancel(error)
