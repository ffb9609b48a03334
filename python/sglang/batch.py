"""run_batch: one program over many items, with a bounded number in flight."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from sglang.backend.base import Backend
from sglang.executor import StreamExecutor
from sglang.params import GenParams
from sglang.progress import Progress
from sglang.settings import global_config
from sglang.state import ProgramState
from sglang.tracer import constant_prefix
from sglang.workers import Workers

if TYPE_CHECKING:
    from sglang.program import SglFunction

AUTO_THREADS = 64
PLAIN = (str, int, float, bool, type(None))


def run_batch(
    program: SglFunction,
    items: Sequence[Mapping[str, Any]],
    backend: Backend,
    defaults: GenParams,
    *,
    num_threads: int | str,
    progress_bar: bool,
    return_errors: bool,
) -> Iterator[ProgramState]:
    """States in the order of ``items``; see ``SglFunction.run_batch``.

    Only a window of items is started ahead of the one that is yielded, so memory is bounded by what
    the caller keeps.
    """
    if not items:
        return
    threads = _threads(num_threads, len(items))
    if len(items) > 1 and global_config.enable_precache_with_tracing:
        prefix = constant_prefix(program, backend, _shared(items))
        if len(prefix) >= global_config.precache_min_chars:
            backend.cache_prefix(prefix)
    progress = Progress(len(items)) if progress_bar else None

    def one(arguments: Mapping[str, Any]) -> ProgramState:
        try:
            state = program.start(backend, (), arguments, defaults)
        except Exception as error:
            if not return_errors:
                raise
            state = _failed(backend, defaults, error)
        if progress:
            progress.advance(state.usage)
        return state

    # Daemon threads: an interrupted batch must not hold the interpreter back.
    pool = Workers(limit=threads)
    waiting: deque[Future[ProgramState]] = deque()
    try:
        for arguments in items:
            waiting.append(_submit(pool, partial(one, arguments)))
            if len(waiting) >= 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except KeyboardInterrupt:
        for future in waiting:
            future.cancel()
        waiting.clear()
        raise
    finally:
        # On an error, or when the caller stops early: begin nothing more, let what runs end.
        wait([future for future in waiting if not future.cancel()])
        if progress:
            progress.close()


def _submit(pool: Workers, call: Callable[[], ProgramState]) -> Future[ProgramState]:
    future: Future[ProgramState] = Future()

    def job() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    pool.submit(job)
    return future


def _threads(asked: int | str, items: int) -> int:
    if asked == "auto":
        asked = max(AUTO_THREADS, 4 * (os.cpu_count() or 1))
    if not isinstance(asked, int) or asked < 1:
        raise ValueError(f"num_threads is {asked!r}; use 'auto' or a number of at least 1")
    return min(asked, items)


def _shared(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Arguments that have the same plain value in every item: constants of this batch."""
    first = items[0]
    return {
        name: value
        for name, value in first.items()
        if isinstance(value, PLAIN)
        and all(isinstance(item.get(name), PLAIN) and item.get(name) == value for item in items[1:])
    }


def _failed(backend: Backend, defaults: GenParams, error: Exception) -> ProgramState:
    executor = StreamExecutor(backend, defaults)
    executor.fail(error, None)
    return ProgramState(executor)
