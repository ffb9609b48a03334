"""merge: several asynchronous streams read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")
_END = object()
AT_ONCE = 32  # streams that are started before yielding to other tasks


async def merge(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Yield the items of all streams as they come, each with its stream's index.

    The first error of a stream ends the merge. In any case all streams are closed at the end.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for one in only:
                yield 0, one
        return
    queue: asyncio.Queue[tuple[int, object]] = asyncio.Queue()

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async for item in stream:
                queue.put_nowait((index, item))
            queue.put_nowait((index, _END))
        except Exception as error:
            queue.put_nowait((index, error))

    tasks: list[asyncio.Future[None]] = []
    try:
        for i, stream in enumerate(streams):
            tasks.append(asyncio.ensure_future(pump(i, stream)))
            if i % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        live = len(tasks)
        while live:
            index, item = await queue.get()
            if item is _END:
                live -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield index, item  # type: ignore[misc]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams[len(tasks) :]:
            await stream.aclose()
