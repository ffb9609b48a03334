"""offload: runs long work in a thread, so that the event loop stays free, and short work at
once."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
T = TypeVar("T")

LONG = 1 << 12  # tokens or entries: some milliseconds of work
TEXT = 1 << 8  # characters of a text that cost as much as one entry


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of ``work``, whose cost is that of ``size`` tokens or list entries.

    Even short work first yields to the other tasks of the event loop.
    """
    if size <= LONG:
        await asyncio.sleep(0)
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of ``work``, run in a thread. A cancelled call still waits for the end of
    the work, because the work uses objects that the caller then releases."""
    run = partial(contextvars.copy_context().run, work, *args, **kwargs)
    # A future and not a task, because the event loop cancels all tasks when it ends.
    done = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        while not done.done():
            with suppress(asyncio.CancelledError):  # the event loop's end cancels again
                await asyncio.wait({done})
        raise


def entries(value: Any, most: int = LONG) -> int:
    """Return the number of entries of plain data, at any depth. Counting stops above ``most``. A
    long text counts as several entries."""
    count, waiting = 0, [value]
    while waiting and count <= most:
        one = waiting.pop()
        count += 1 + (len(one) // TEXT if isinstance(one, str) else 0)
        if isinstance(one, msgspec.Struct):
            one = [getattr(one, name) for name in one.__struct_fields__]
        if isinstance(one, dict | list | tuple):
            if len(one) > most:
                return most + 1
            waiting += one.values() if isinstance(one, dict) else one
    return count
