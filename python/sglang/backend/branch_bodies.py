"""Bodies of branches: a program over each of many forks, side by side, in threads or tasks."""

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
# Threads of bodies, which may wait for bodies of their own.
BODIES = Workers(limit=100_000)


class Branches(Protocol):
    """The forks of a state."""

    states: Any

    def join(self) -> None:
        """Wait for all, and gather their variables."""

    async def ajoin(self) -> None:
        """``join``, awaited."""


class Forkable(Protocol):
    """A state that can be forked."""

    def fork(self, size: int) -> Branches:
        """``size`` states that go on from here."""


def mapped(
    state: Forkable,
    items: Sequence[Any],
    program: Body,
    loop: asyncio.AbstractEventLoop | None,
    threads: bool,
) -> list[Any]:
    """Return what ``program`` returns over a fork of the state for each item, in order, and join.

    At most ``global_config.max_threads`` run at a time; without ``threads`` one after the other.
    After an error no other one begins, and it is raised when those that had begun have ended.
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
    """``mapped`` for an event loop: coroutines are its tasks, others run in threads, as many at a
    time."""
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
    """The call of ``program``; the item is a dict or tuple of arguments, or the only one."""
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
