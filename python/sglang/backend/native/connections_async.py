"""Connections for an event loop: the asynchronous version of ``connections``."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from sglang.backend.native.connections import (
    CONNECT_SECONDS,
    KEPT,
    KEPT_SECONDS,
    READ,
    Dialogue,
    HttpLines,
    ServerOrigin,
    readable,
)

Ends: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncExchange:
    """Asynchronous version of ``connections.HttpExchange``."""

    def __init__(self, reader: asyncio.StreamReader, dialogue: Dialogue, first: bytes) -> None:
        self._reader, self._dialogue, self._first = reader, dialogue, first
        self.status, self.retry_after = dialogue.status, dialogue.retry_after

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self._first
        while not self._dialogue.complete:
            yield self._dialogue.feed(await self._reader.read(READ))

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def lines(self) -> AsyncIterator[str]:
        lines = HttpLines()
        async for piece in self.pieces():
            for line in lines.of(piece):
                yield line
        for line in lines.of(b"\n"):
            yield line


class AsyncConnections:
    """Asynchronous version of ``connections.Connections``, for one event loop."""

    def __init__(self, origin: ServerOrigin) -> None:
        self._origin = origin
        self._idle: deque[tuple[Ends, float]] = deque()  # with its last use
        self._closed = False

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, body: Any = None
    ) -> AsyncIterator[AsyncExchange]:
        """Send a request and yield its answer. Raises ConnectionFailed, also while the body is
        read."""
        dialogue, first = Dialogue(self._origin, method, path, body), b""
        reader, writer = await self._take()
        try:
            writer.write(dialogue.request)
            await writer.drain()
            while not dialogue.status:
                first = dialogue.feed(await reader.read(READ))
            yield AsyncExchange(reader, dialogue, first)
        except OSError as error:
            raise self._origin.lost(error) from error
        finally:
            if dialogue.keeps and not self._closed and len(self._idle) < KEPT:
                self._idle.append(((reader, writer), time.monotonic()))
            else:
                writer.transport.abort()  # unsent bytes must not keep it open

    async def _take(self) -> Ends:
        """Return the connection used last that is still open and not too old, or a new one."""
        while self._idle:
            (reader, writer), since = self._idle.pop()
            closed = writer.is_closing() or readable(writer.get_extra_info("socket").fileno())
            if time.monotonic() < since + KEPT_SECONDS and not closed:
                return reader, writer
            writer.close()
        origin = self._origin
        try:
            return await asyncio.wait_for(_opened(origin), CONNECT_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            raise origin.unreachable(error) from error

    def close(self) -> None:
        """Close the idle connections now, and the others when their requests end."""
        self._closed = True
        while self._idle:
            self._idle.pop()[0][1].close()


async def _opened(origin: ServerOrigin) -> Ends:
    """Open a connection, through the proxy if there is one. Raises OSError."""
    if origin.proxy is None:
        return await asyncio.open_connection(origin.host, origin.port, ssl=origin.context)
    connection = await asyncio.to_thread(origin.dial)
    connection.setblocking(False)
    name = None if origin.context is None else origin.host
    return await asyncio.open_connection(sock=connection, ssl=origin.context, server_hostname=name)
