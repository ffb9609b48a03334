"""Connections: kept connections to one server, each used by one request at a time.

A client that does no more than this is worth its lines: a request to a server that answers at once
takes 0.2 ms here and 0.6 ms through httpx, whose pool also looks at each of its connections
whenever a request begins or ends (6 ms with 64 of them; see docs/perf-log.md).
"""

from __future__ import annotations

import json
import select
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlsplit

from sglang.backend.http1 import Lines, Reply
from sglang.errors import ConnectionFailed

CONNECT_SECONDS = 10.0
KEPT = 256
READ = 1 << 16
_encode = json.JSONEncoder(allow_nan=False).encode


class Origin:
    """Where requests go; a path in ``base_url`` is put before each one's.

    ``verify`` is False, or the path of a CA file, for https. Raises ValueError where ``base_url``
    is no http or https URL, or holds a user's name.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], verify: bool | str) -> None:
        parts = urlsplit(base_url)
        if parts.username is not None:
            raise ValueError("the URL of a runtime holds no user and no password; give api_key")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no URL of a runtime; give http://HOST:PORT")
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise ValueError("the API key holds a character that a header cannot; check it")
        self.url, self.host = base_url, parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.context = _context(verify) if parts.scheme == "https" else None
        self._path = quote(parts.path, safe="/%")
        known = {"Host": parts.netloc, "Accept": "*/*", "Content-Type": "application/json"}
        lines = (f"{name}: {value}\r\n" for name, value in {**known, **headers}.items())
        self._headers = "".join(lines)

    def request(self, method: str, path: str, body: Any) -> bytes:
        content = b"" if body is None else _encode(body).encode()
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode("latin-1") + content

    def unreachable(self, error: Exception) -> ConnectionFailed:
        reason = str(error) or type(error).__name__
        return ConnectionFailed(
            f"no runtime answers at {self.url} ({reason}); "
            "start one with: python -m sglang.launch_server"
        )

    def lost(self, error: Exception) -> ConnectionFailed:
        reason = str(error) or type(error).__name__
        return ConnectionFailed(f"the connection to {self.url} was lost: {reason}")


def _context(verify: bool | str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Exchange:
    """A request that has been answered: the reply's status, and its body as it comes."""

    def __init__(self, connection: socket.socket, reply: Reply, first: bytes) -> None:
        self._connection, self._reply, self._first = connection, reply, first
        self.status = reply.status

    def pieces(self) -> Iterator[bytes]:
        yield self._first
        while not self._reply.complete:
            yield self._reply.feed(self._connection.recv(READ))

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def lines(self) -> Iterator[str]:
        lines = Lines()
        for piece in self.pieces():
            yield from lines.of(piece)
        yield from lines.of(b"\n")


class Connections:
    """For threads. Any number may be in use; of those that are not, 256 are kept."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._idle: deque[socket.socket] = deque()
        self._closed = False

    @contextmanager
    def exchange(self, method: str, path: str, body: Any = None) -> Iterator[Exchange]:
        """Raises ConnectionFailed, also while the body is read."""
        request = self._origin.request(method, path, body)
        connection, reply, first = self._take(), Reply(), b""
        try:
            connection.sendall(request)
            while not reply.status:
                first = reply.feed(connection.recv(READ))
            yield Exchange(connection, reply, first)
        except OSError as error:
            raise self._origin.lost(error) from error
        finally:
            if reply.keeps and not self._closed and len(self._idle) < KEPT:
                self._idle.append(connection)
            else:
                connection.close()

    def _take(self) -> socket.socket:
        """The one that was used last, unless the server has closed it meanwhile."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if not readable(connection.fileno()):
                return connection
            connection.close()
        return self._connect()

    def _connect(self) -> socket.socket:
        origin = self._origin
        try:
            connection = socket.create_connection((origin.host, origin.port), CONNECT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.context is not None:
                connection = origin.context.wrap_socket(connection, server_hostname=origin.host)
        except OSError as error:
            raise origin.unreachable(error) from error
        connection.settimeout(None)
        return connection

    def close(self) -> None:
        """Close those that are kept now, and the others when their requests end."""
        self._closed = True
        with suppress(IndexError):  # others take and give back at the same time
            while True:
                self._idle.pop().close()


def readable(descriptor: int) -> bool:
    """Of a connection that waits for nothing: whether the server has closed it."""
    if not hasattr(select, "poll"):
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
