"""Connections for an event loop: the twin of ``connections``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from sglang.backend.connections import CONNECT_SECONDS, KEPT, READ, Origin, readable
from sglang.backend.http1 import Lines, Reply

Ends: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncExchange:
    """``Exchange``, awaited."""

    def __init__(self, reader: asyncio.StreamReader, reply: Reply, first: bytes) -> None:
        self._reader, self._reply, self._first = reader, reply, first
        self.status = reply.status

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self._first
        while not self._reply.complete:
            yield self._reply.feed(await self._reader.read(READ))

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def lines(self) -> AsyncIterator[str]:
        lines = Lines()
        async for piece in self.pieces():
            for line in lines.of(piece):
                yield line
        for line in lines.of(b"\n"):
            yield line


class AsyncConnections:
    """``Connections`` for one event loop."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._idle: deque[Ends] = deque()
        self._closed = False

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, body: Any = None
    ) -> AsyncIterator[AsyncExchange]:
        """Raises ConnectionFailed, also while the body is read."""
        request = self._origin.request(method, path, body)
        (reader, writer), reply, first = await self._take(), Reply(), b""
        try:
            writer.write(request)
            await writer.drain()
            while not reply.status:
                first = reply.feed(await reader.read(READ))
            yield AsyncExchange(reader, reply, first)
        except OSError as error:
            raise self._origin.lost(error) from error
        finally:
            if reply.keeps and not self._closed and len(self._idle) < KEPT:
                self._idle.append((reader, writer))
            else:
                writer.close()

    async def _take(self) -> Ends:
        """The one that was used last, unless the server has closed it meanwhile."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not (writer.is_closing() or readable(writer.get_extra_info("socket").fileno())):
                return reader, writer
            writer.close()
        origin = self._origin
        try:
            opening = asyncio.open_connection(origin.host, origin.port, ssl=origin.context)
            return await asyncio.wait_for(opening, CONNECT_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            raise origin.unreachable(error) from error

    def close(self) -> None:
        """Close those that are kept now, and the others when their requests end."""
        self._closed = True
        while self._idle:
            self._idle.pop()[1].close()
