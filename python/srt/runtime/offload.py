"""Beside: work that would hold the event loop up is done in a thread, short work at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONG = 1 << 12  # tokens, entries: some milliseconds of work


async def beside(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work``, whose time is that of ``size`` tokens or entries of a list. However
    short it is, others have the loop in between."""
    if size <= LONG:
        await asyncio.sleep(0)
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
