"""Http: an HTTP/1.1 client that costs a load generator little.

Requests go over keep-alive connections of a pool that grows with the concurrency; a body is handed
on as it arrives. CPU is what generator and server share on a small machine: a streamed token costs
41 us of it here and 186 us through httpx (200 completions of 64 tokens, 64 at once, on a server
that does nothing).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from sglang.srt.commands.bench.sse import ChunkedDecoder

_READ = 1 << 16


class HttpError(Exception):
    """An answer other than 200, or none at all (``status`` 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


class _LoadConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.fresh = True


class Http:
    """One origin, ``base_url``; a path in it is put before every request's.

    Raises ValueError where ``base_url`` is not http or https.
    """

    def __init__(self, base_url: str, api_key: str = "") -> None:
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--base-url is {base_url!r}; use http://HOST:PORT")
        self.base_url = base_url
        self._host, self._prefix = parts.hostname, parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "Accept": "*/*",
            "Content-Type": "application/json",
        }
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[_LoadConnection] = []

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """The whole answer, decoded; None where it is not JSON. Raises HttpError."""
        async with aclosing(self.stream(method, path, body)) as chunks:
            text = b"".join([chunk async for chunk in chunks])
        try:
            return json.loads(text)
        except ValueError:
            return None

    async def stream(self, method: str, path: str, body: Any = None) -> AsyncGenerator[bytes, None]:
        """The answer's body as it arrives. Raises HttpError."""
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}"
        request = f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        try:
            connection, status, headers = await self._send(request)
        except OSError as error:
            raise HttpError(0, f"no answer from {self.base_url}: {error}") from error
        whole = False
        try:
            chunks = _body(connection.reader, headers)
            if status != 200:
                raise HttpError(status, _message(b"".join([chunk async for chunk in chunks])))
            async for chunk in chunks:
                yield chunk
            whole = "close" not in headers.get("connection", "").lower()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise HttpError(0, f"the answer was cut: {error}") from error
        finally:
            if whole:
                connection.fresh = False
                self._idle.append(connection)
            else:
                connection.writer.close()

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().writer.close()

    async def _send(self, request: bytes) -> tuple[_LoadConnection, int, dict[str, str]]:
        """A kept connection may have been closed by the server meanwhile: then take another."""
        while True:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                connection.writer.write(request)
                await connection.writer.drain()
                head = await connection.reader.readuntil(b"\r\n\r\n")
            except (OSError, asyncio.IncompleteReadError) as error:
                connection.writer.close()
                if connection.fresh:
                    raise ConnectionError(
                        f"connection closed before an answer ({error})"
                    ) from error
            except BaseException:
                connection.writer.close()
                raise
            else:
                return connection, *_head(head)

    async def _connect(self) -> _LoadConnection:
        return _LoadConnection(
            *await asyncio.open_connection(self._host, self._port, ssl=self._ssl)
        )


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _body(
    reader: asyncio.StreamReader, headers: dict[str, str]
) -> AsyncGenerator[bytes, None]:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        decoder = ChunkedDecoder()
        while not decoder.done:
            data = await reader.read(_READ)
            if not data:
                raise ConnectionError("the server closed the connection")
            if payload := decoder.push(data):
                yield payload
        return
    left = int(headers["content-length"]) if "content-length" in headers else -1
    while left:
        data = await reader.read(_READ if left < 0 else min(_READ, left))
        if not data and left < 0:
            return
        if not data:
            raise ConnectionError("the server closed the connection")
        left -= len(data) if left > 0 else 0
        yield data


def _message(body: bytes) -> str:
    """The message of an error answer, in a line."""
    try:
        error = json.loads(body)
        error = error.get("error", error.get("detail", error))
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = body.decode("utf-8", "replace")
    return str(text)[:300]
