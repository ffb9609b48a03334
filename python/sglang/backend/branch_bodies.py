"""Branch bodies: runs a program on each of many forks, in parallel, in threads or tasks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Protocol

from sglang.backend.global_settings import global_config
from sglang.backend.worker_threads import Workers
from sglang.errors import SglangError

Body = Callable[..., Any]
# Threads of bodies. A body may wait for other bodies, so the limit is high.
BODIES = Workers(limit=100_000)


class Branches(Protocol):
    """The forks of a state."""

    states: Any

    def join(self) -> None:
        """Wait for all forks and gather their variables."""

    async def ajoin(self) -> None:
        """Join as ``join`` does, awaited."""


class Forkable(Protocol):
    """A state that can be forked."""

    def fork(self, size: int) -> Branches:
        """Return ``size`` forks of the state."""


def mapped(
    state: Forkable,
    items: Sequence[Any],
    program: Body,
    loop: asyncio.AbstractEventLoop | None,
    threads: bool,
) -> list[Any]:
    """Run ``program`` on a fork of the state for each item and join. Return the results in order.

    At most ``global_config.max_threads`` bodies run at a time; without ``threads`` only one. After
    an error no further body begins, and the error is raised when the running ones have ended.
    ``loop``: the event loop that makes the state's calls, which must not be blocked.
    """
    if not items:
        return []
    if loop is not None and _inside(loop):
        raise SglangError("map would block the event loop; use await s.amap(items, program)")
    forks = state.fork(len(items))
    bodies = [_body(program, one, item) for one, item in zip(forks.states, items)]
    results = _in_threads(bodies) if threads else [body() for body in bodies]
    forks.join()
    return [_plain(result) for result in results]


async def amapped(state: Forkable, items: Sequence[Any], program: Body) -> list[Any]:
    """Map as ``mapped`` does, in an event loop: coroutines run as tasks, other programs in threads,
    at most ``max_threads`` at a time."""
    if not items:
        return []
    forks = state.fork(len(items))
    bodies = [_body(program, one, item) for one, item in zip(forks.states, items)]
    inline = inspect.iscoroutinefunction(program) or bool(getattr(program, "is_async", False))
    slots = asyncio.Semaphore(global_config.max_threads)
    tasks = [asyncio.ensure_future(body() if inline else _threaded(body, slots)) for body in bodies]
    try:
        results = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    await forks.ajoin()
    return list(results)


def _body(program: Body, state: Any, item: Any) -> Callable[[], Any]:
    """Return a call of ``program``. ``item``: dict or tuple of arguments, or the only argument."""
    if isinstance(item, Mapping):
        return partial(program, state, **item)
    return partial(program, state, *(item if isinstance(item, tuple) else (item,)))


async def _threaded(body: Callable[[], Any], slots: asyncio.Semaphore) -> Any:
    async with slots:
        return await asyncio.wrap_future(BODIES.call(body))


def _in_threads(bodies: Sequence[Callable[[], Any]]) -> list[Any]:
    begun: list[Future[Any]] = []
    running: set[Future[Any]] = set()
    for body in bodies:
        begun.append(BODIES.call(body))
        running.add(begun[-1])
        if len(running) >= global_config.max_threads:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            if any(one.exception() for one in ended):
                break
    wait(running)
    return [one.result() for one in begun]


def _inside(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _plain(result: Any) -> Any:
    if not inspect.iscoroutine(result):
        return result
    result.close()
    raise SglangError("the program is asynchronous; use await s.amap(items, program)")
