"""offload: long work is done in a thread, so that the event loop goes on; short work at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONG = 1 << 12  # tokens, entries: some milliseconds of work


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work``, which takes as long as ``size`` tokens or entries of a list do.

    Other tasks have the loop in between, however short the work is.
    """
    if size <= LONG:
        await asyncio.sleep(0)
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
