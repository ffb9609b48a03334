"""Batch: one program over many items, with a bounded number in flight."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from sglang.backend.base import Backend, Commit, Prompt
from sglang.backend.global_settings import global_config
from sglang.backend.worker_threads import Workers
from sglang.batch.batch_progress import BatchProgress
from sglang.batch.results_file import ResultsFile
from sglang.compile.tracer import constant_prefix
from sglang.errors import BatchError, Cancelled, SglangError
from sglang.ir.params import GenParams
from sglang.state import Program, ProgramState
from sglang.views.timeline.tracing import NO_TRACE, Opened, ambient, recorded_alone, write

AUTO = 64
PREFIX = "common prefix"  # in a trace: what is computed before the items
PLAIN = (str, int, float, bool, type(None))
Started = tuple[ProgramState, "Future[ProgramState]"]


class Sent(Protocol):
    """An item that a server runs."""

    replayed: ProgramState

    def result(self) -> ProgramState: ...
    async def aresult(self) -> ProgramState: ...


Send = Callable[[Mapping[str, Any], Opened], Sent]


class ProgramBatch:
    """See ``SglFunction.run_batch`` and ``arun_batch``.

    At most twice as many items as may run at once are begun ahead of the one that is yielded, so
    memory is bounded by what the caller keeps. A batch that ends early, because an item fails or
    the caller stops, begins nothing more and aborts what is in flight.

    Args:
        limit: items that run at once, or "auto".
        return_errors: an item's failure is left in its state; else it ends the batch.
        send: gives an item to a server that runs the whole program; None: items run here.
        trace: what it is recorded into, and the file that is written at the end.

    ``errors`` has what each item that failed has raised.
    """

    def __init__(
        self,
        program: Program,
        items: Sequence[Mapping[str, Any]],
        backend: Backend,
        defaults: GenParams,
        *,
        limit: int | str,
        progress_bar: bool = False,
        return_errors: bool = False,
        results_file: str | os.PathLike[str] | None = None,
        send: Send | None = None,
        trace: Opened = NO_TRACE,
    ) -> None:
        self._program, self._items = program, items
        self._backend, self._defaults = backend, defaults
        self._limit = _limit(limit)
        # A server begins at once with all that it is sent.
        self._send, self._most_waiting = send, self._limit if send else 2 * self._limit
        self._return_errors = return_errors
        self._trace, self._trace_path = trace[0] or ambient(), trace[1]
        self.errors: dict[int, Exception] = {}
        self._file: ResultsFile | None = None
        if results_file is not None:
            self._file = ResultsFile(results_file, program, items, defaults)
        self._progress: BatchProgress | None = None
        if progress_bar:
            self._progress = BatchProgress(len(items), restored=len(self._file or ()))

    def run(self) -> Generator[ProgramState, None, None]:
        """States in the order of the items, by threads."""
        # Daemon threads: an interrupted batch must not hold the interpreter back.
        pool = Workers(limit=self._limit)
        waiting, sent = deque[Started](), self._send is not None
        try:
            if prefix := self._prefix():
                with suppress(SglangError):  # a hint; the items will tell what is wrong
                    self._commit(self._ahead(prefix))
            for number in range(len(self._items)):
                waiting.append(self._begin(pool, number))
                if len(waiting) >= self._most_waiting:
                    yield _first(waiting)
            while waiting:
                yield _first(waiting)
        except KeyboardInterrupt:
            _abort(waiting, sent)
            waiting.clear()  # no caller waits for them
            raise
        finally:
            wait(_abort(waiting, sent))
            self._close()

    async def arun(self) -> AsyncGenerator[ProgramState, None]:
        """``run`` by tasks of the running event loop."""
        slots = asyncio.Semaphore(self._limit)
        waiting: deque[asyncio.Task[ProgramState]] = deque()
        try:
            if prefix := self._prefix():
                with suppress(SglangError):
                    await self._acommit(self._ahead(prefix))
            for number in range(len(self._items)):
                waiting.append(asyncio.create_task(self._aone(number, slots)))
                if len(waiting) >= self._most_waiting:
                    yield await _afirst(waiting)
            while waiting:
                yield await _afirst(waiting)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            self._close()

    def _begin(self, pool: Workers, number: int) -> Started:
        if self._stored(number):
            future: Future[ProgramState] = Future()
            future.set_result(self._restored(number))
            return future.result(), future
        if self._send is not None:
            return self._begin_sent(self._send, pool, number)
        state = self._new_state()
        run = partial(self._program.start, state, (), self._items[number])
        return state, pool.call(self._one, number, state, run)

    def _begin_sent(self, send: Send, pool: Workers, number: int) -> Started:
        try:
            sent = send(self._items[number], (self._trace, None))
        except Exception as error:
            state = self._new_state()
            return state, pool.call(self._refused, number, state, error)
        return sent.replayed, pool.call(self._one, number, sent.replayed, sent.result)

    def _new_state(self, loop: asyncio.AbstractEventLoop | None = None) -> ProgramState:
        to = (self._trace, None)
        return self._program.new_state(self._backend, self._defaults, loop=loop, trace=to)

    def _one(self, number: int, state: ProgramState, run: Callable[[], Any]) -> ProgramState:
        try:
            run()
        except Exception as error:
            return self._ended(number, state, error)
        return self._ended(number, state, None)

    def _refused(self, number: int, state: ProgramState, error: Exception) -> ProgramState:
        """The item is not sent: its program cannot be run by a server with these arguments."""
        state._executor.run.cancel(error)
        return self._ended(number, state, error)

    async def _aone(self, number: int, slots: asyncio.Semaphore) -> ProgramState:
        loop = asyncio.get_running_loop()
        async with slots:
            if self._stored(number):
                return self._restored(number, loop)
            if self._send is None:
                state = self._new_state(loop)
                started = self._program.astart(state, (), self._items[number])
                return await self._awaited(number, state, started)
            try:
                sent = self._send(self._items[number], (self._trace, None))
            except Exception as error:
                return self._refused(number, self._new_state(), error)
            return await self._awaited(number, sent.replayed, sent.aresult())

    async def _awaited(self, number: int, state: ProgramState, run: Awaitable[Any]) -> ProgramState:
        try:
            await run
        except Exception as error:
            return self._ended(number, state, error)
        return self._ended(number, state, None)

    def _stored(self, number: int) -> bool:
        """Whether the file has the item's result."""
        return self._file is not None and number in self._file

    def _restored(self, number: int, loop: asyncio.AbstractEventLoop | None = None) -> ProgramState:
        """A state filled from the file."""
        state = self._new_state(loop)
        assert self._file is not None
        self._file.restore(number, state)
        return state

    def _ended(self, number: int, state: ProgramState, error: Exception | None) -> ProgramState:
        if self._file is not None and error is None:
            self._file.add(number, state)
        if self._progress is not None:
            self._progress.advance(state.usage, failed=error is not None)
        if error is not None:
            self.errors[number] = error
            if not self._return_errors:
                raise error
        return state

    def _commit(self, prompt: Prompt) -> None:
        if self._trace is None:
            self._backend.commit(prompt)
            return
        with recorded_alone(PREFIX, self._trace, self._backend, Commit(prompt)) as asked:
            asked.answer = self._backend.commit(prompt)

    async def _acommit(self, prompt: Prompt) -> None:
        if self._trace is None:
            await self._backend.acommit(prompt)
            return
        with recorded_alone(PREFIX, self._trace, self._backend, Commit(prompt)) as asked:
            asked.answer = await self._backend.acommit(prompt)

    def _ahead(self, prefix: str) -> Prompt:
        return Prompt(prefix, lora_path=self._defaults.lora_path or "")

    def _prefix(self) -> str:
        """Return the common beginning of all items that will run; "" where it is short.

        Arguments with the same plain value in every item count as constants.
        """
        items = [item for n, item in enumerate(self._items) if not self._stored(n)]
        if self._send or len(items) < 2 or not global_config.enable_precache_with_tracing:
            return ""
        prefix = constant_prefix(self._program, self._backend, _shared(items))
        return prefix if len(prefix) >= global_config.precache_min_chars else ""

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.close()
        if self._file is not None:
            self._file.close()
        if self._trace is not None and self._trace_path is not None:
            write(self._trace, self._trace_path)


def collected(batch: ProgramBatch) -> list[ProgramState]:
    """All states, once all have run. Raises BatchError if some have failed."""
    kept = list(batch.run())
    if not batch.errors:
        return kept
    errors: dict[int, BaseException] = dict(sorted(batch.errors.items()))
    number, first = next(iter(errors.items()))
    what = f"{len(errors)} of {len(kept)} items failed"
    raise BatchError(f"{what}; the first, item {number}: {_told(first)}", kept, errors) from first


def _told(error: BaseException) -> str:
    """The message of an item's error, with the line that raised it."""
    if isinstance(error, SglangError):
        return str(error)
    lines = [
        f" at {frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_globals.get("__name__", "").startswith("sglang.")
    ]
    return f"{type(error).__name__}: {error}{lines[-1] if lines else ''}"


def _first(waiting: deque[Started]) -> ProgramState:
    """The oldest, once it is done; until then it stays in ``waiting``."""
    state = waiting[0][1].result()
    waiting.popleft()
    return state


async def _afirst(waiting: deque[asyncio.Task[ProgramState]]) -> ProgramState:
    await asyncio.wait([waiting[0]])
    return waiting.popleft().result()


def _abort(waiting: Iterable[Started], sent: bool) -> list[Future[ProgramState]]:
    """Begin none of these and end the programs that run. Return the futures of those.

    ``sent``: a server has them all.
    """
    running = []
    for state, future in waiting:
        if future.done():
            continue
        if begun := not future.cancel():
            running.append(future)
        if begun or sent:
            state._executor.run.cancel(Cancelled("the batch has ended before this item"))
    return running


def item_of(program: Program, item: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    """Arguments of a batch's item by name. Raises TypeError for what is none."""
    if isinstance(item, Mapping):
        return item
    if not isinstance(item, (list, tuple)):
        raise TypeError(f"a batch item is a dict or a tuple of arguments, not {item!r:.60}")
    free = [name for name in program.arg_names if name not in program.bound]
    if len(item) > len(free):
        raise TypeError(f"a batch item has {len(item)} values; {free} are the arguments")
    return dict(zip(free, item))


def _limit(asked: int | str) -> int:
    if asked == "auto":
        return max(AUTO, 4 * (os.cpu_count() or 1))
    if not isinstance(asked, int) or asked < 1:
        raise ValueError(
            f"num_threads or concurrency is {asked!r}; use 'auto' or a number of at least 1"
        )
    return asked


def _shared(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = items[0]
    return {
        name: value
        for name, value in first.items()
        if isinstance(value, PLAIN)
        and all(isinstance(item.get(name), PLAIN) and item.get(name) == value for item in items[1:])
    }
