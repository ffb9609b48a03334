"""offload: long work is done in a thread, so that the event loop goes on; short work at once."""

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

LONG = 1 << 12  # tokens, entries: some milliseconds of work
TEXT = 1 << 8  # characters of a text that are the work of one entry


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work``, which takes as long as ``size`` tokens or entries of a list do.

    Other tasks have the loop in between, however short the work is.
    """
    if size <= LONG:
        await asyncio.sleep(0)
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work``, done in a thread. Where this is cancelled, once or more often, the
    work ends first, as it uses what its caller gives up then."""
    run = partial(contextvars.copy_context().run, work, *args, **kwargs)
    # No task: the end of the event loop cancels every task, also one that others are waiting for.
    done = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        while not done.done():
            with suppress(asyncio.CancelledError):  # the event loop's end cancels again
                await asyncio.wait({done})
        raise


def entries(value: Any, most: int = LONG) -> int:
    """Number of entries of plain data, at any depth, of which at most ``most`` are counted. A long
    text counts as several."""
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
