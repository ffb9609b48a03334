"""Connections: pool of connections to one server; each serves one request at a time.

``h11`` encodes and decodes HTTP/1.1; this module manages the sockets. httpx would do both, but its
pool checks each of its connections whenever a request begins or ends (6 ms with 64 connections in
use; see docs/perf-log.md).
"""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from sglang.backend.call_observer import OBSERVER
from sglang.backend.cancel import aborted_by
from sglang.backend.native.http_proxy import proxy_of
from sglang.backend.native.lost_server import NoServer
from sglang.errors import ConnectionFailed

CONNECT_SECONDS = 10.0
KEPT = 256
KEPT_SECONDS = 2.0  # less than the 5 seconds or more after which servers close idle connections
READ = 1 << 16
_encode = json.JSONEncoder(allow_nan=False).encode


class ServerOrigin:
    """Destination of requests. A path in ``base_url`` is put before each request's path. Requests
    use the proxy that the environment names for the destination (``http_proxy``).

    ``verify``: False, or the path of a CA file, for https. Raises ValueError if ``base_url`` is not
    an http or https URL, or contains a user name.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], verify: bool | str) -> None:
        parts = urlsplit(base_url)
        if parts.username is not None:
            raise ValueError("the URL of a runtime holds no user and no password; give api_key")
        if parts.scheme not in ("http", "https") or not parts.hostname or not _fits(parts.netloc):
            raise ValueError(f"{base_url!r} is no URL of a runtime; give http://HOST:PORT")
        if not all(map(_fits, headers.values())):
            raise ValueError("the API key holds a character that a header cannot; check it")
        self.url, self.host = base_url, parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.context = _context(verify) if parts.scheme == "https" else None
        self.path = quote(parts.path, safe="/%")
        self.proxy = proxy_of(parts.scheme, self.host)
        known = {"Host": parts.netloc, "Accept": "*/*", "Content-Type": "application/json"}
        self.headers = list({**known, **headers}.items())
        if self.proxy is not None and self.context is None:
            self.path = f"http://{parts.netloc}{self.path}"  # a proxy needs the whole URL
            self.headers += self.proxy.headers

    def dial(self) -> socket.socket:
        """Connect to the server, directly or through the proxy, without TLS. Raises OSError."""
        to = self.proxy or self
        connection = socket.create_connection((to.host, to.port), CONNECT_SECONDS)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.proxy is not None and self.context is not None:
                self.proxy.tunnel(connection, self.host, self.port)
        except BaseException:
            connection.close()
            raise
        return connection

    def unreachable(self, error: Exception) -> NoServer:
        reason = str(error) or type(error).__name__
        via = f" through the proxy {self.proxy.host}:{self.proxy.port}" if self.proxy else ""
        return NoServer(
            f"no runtime answers at {self.url}{via} ({reason}); "
            "start one with: python -m sglang.launch_server"
        )

    def lost(self, error: Exception) -> ConnectionFailed:
        reason = str(error) or type(error).__name__
        return ConnectionFailed(f"the connection to {self.url} was lost: {reason}")


def _fits(value: str) -> bool:
    """Return True if ``value`` is a valid header value without encoding."""
    return value.isascii() and value.isprintable() and value == value.strip()


def _context(verify: bool | str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Dialogue:
    """State of one HTTP/1.1 request and its reply, without the connection.

    Attributes:
        request: bytes to send.
        status: status of the reply; 0 before its head has arrived.
        retry_after: seconds of the reply's ``Retry-After``, None without that header.
        complete: the whole reply has arrived.
    """

    def __init__(self, origin: ServerOrigin, method: str, path: str, body: Any = None) -> None:
        import h11

        content = b"" if body is None else _encode(body).encode()
        headers = [*origin.headers, ("Content-Length", str(len(content)))]
        if (observer := OBSERVER.get()) is not None and (parent := observer.traceparent):
            headers.append(("traceparent", parent))
        self._http = h11.Connection(h11.CLIENT)
        head = self._http.send(
            h11.Request(method=method, target=origin.path + path, headers=headers)
        )
        self.request = head + self._http.send(h11.Data(content))
        self._http.send(h11.EndOfMessage())
        self.status, self.complete = 0, False
        self.retry_after: float | None = None

    @property
    def keeps(self) -> bool:
        """True if the connection can be used for another request."""
        import h11

        return self._http.their_state is h11.DONE and not any(self._http.trailing_data)

    def feed(self, data: bytes) -> bytes:
        """Process received bytes; b"": the connection has ended. Return the body's bytes in them.

        Raises ConnectionError if the reply ends early or is not HTTP/1.1.
        """
        import h11

        body: list[bytes] = []
        try:
            self._http.receive_data(data)
            while not self.complete and (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self.status = event.status_code
                    self.retry_after = seconds_of(dict(event.headers).get(b"retry-after"))
                elif isinstance(event, h11.Data):
                    body.append(event.data)
                self.complete = isinstance(event, h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            if not data:
                raise ConnectionError("it was closed before the end of the answer") from error
            raise ConnectionError(f"the answer is no HTTP/1.1: {error}") from error
        return b"".join(body)


def seconds_of(retry_after: str | bytes | None) -> float | None:
    """Return the seconds of a ``Retry-After`` header; None for a date, which no runtime sends."""
    text = retry_after.decode("latin-1") if isinstance(retry_after, bytes) else retry_after or ""
    return float(text) if text.isascii() and text.isdigit() else None


class HttpLines:
    """Splits a UTF-8 text, received in pieces, into lines without line ends."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # pieces of an incomplete line, which may have megabytes

    def of(self, piece: bytes) -> Iterator[str]:
        """Yield the lines that ``piece`` completes."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun = []
        self._begun.append(rest)
        for line in lines:
            yield line.rstrip(b"\r").decode("utf-8", "replace")


class HttpExchange:
    """A request whose reply has begun: the status, and the body while it arrives."""

    def __init__(self, connection: socket.socket, dialogue: Dialogue, first: bytes) -> None:
        self._connection, self._dialogue, self._first = connection, dialogue, first
        self.status, self.retry_after = dialogue.status, dialogue.retry_after

    def pieces(self) -> Iterator[bytes]:
        yield self._first
        while not self._dialogue.complete:
            yield self._dialogue.feed(self._connection.recv(READ))

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def lines(self) -> Iterator[str]:
        lines = HttpLines()
        for piece in self.pieces():
            yield from lines.of(piece)
        yield from lines.of(b"\n")


class Connections:
    """Connections for threads. Any number may be in use; 256 idle ones are kept for 2 seconds."""

    def __init__(self, origin: ServerOrigin) -> None:
        self._origin = origin
        self._idle: deque[tuple[socket.socket, float]] = deque()  # with its last use
        self._process = os.getpid()
        self._closed = False

    @contextmanager
    def exchange(self, method: str, path: str, body: Any = None) -> Iterator[HttpExchange]:
        """Send a request and yield its answer. Raises ConnectionFailed, also while the body is
        read. Cancellation of the run closes the connection, which ends the request in the server
        and raises ConnectionFailed."""
        dialogue, first = Dialogue(self._origin, method, path, body), b""
        connection = self._take()
        try:
            with aborted_by(partial(_cut, connection)):
                connection.sendall(dialogue.request)
                while not dialogue.status:
                    first = dialogue.feed(connection.recv(READ))
                yield HttpExchange(connection, dialogue, first)
        except OSError as error:
            raise self._origin.lost(error) from error
        finally:
            if dialogue.keeps and not self._closed and len(self._idle) < KEPT:
                self._idle.append((connection, time.monotonic()))
            else:
                connection.close()

    def _take(self) -> socket.socket:
        """Return the connection used last that is still open and not too old, or a new one."""
        if self._process != os.getpid():  # forked: the idle connections belong to the parent
            inherited, self._idle = self._idle, deque()
            self._process = os.getpid()
            for connection, _ in inherited:
                connection.close()  # closes this process's copy only
        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if time.monotonic() < since + KEPT_SECONDS and not readable(connection.fileno()):
                return connection
            connection.close()
        return self._connect()

    def _connect(self) -> socket.socket:
        origin = self._origin
        try:
            connection = origin.dial()
            if origin.context is not None:
                connection = origin.context.wrap_socket(connection, server_hostname=origin.host)
        except OSError as error:
            raise origin.unreachable(error) from error
        connection.settimeout(None)
        return connection

    def close(self) -> None:
        """Close the idle connections now, and the others when their requests end."""
        self._closed = True
        with suppress(IndexError):  # other threads take and return connections meanwhile
            while True:
                self._idle.pop()[0].close()


def _cut(connection: socket.socket) -> None:
    """End the wait of the thread that uses ``connection``. For TLS, only the underlying socket is
    shut down, because that thread is using the TLS state."""
    socket.socket.shutdown(connection, socket.SHUT_RDWR)


def readable(descriptor: int) -> bool:
    """Return True if an idle connection has data to read, which means that it was closed."""
    if not hasattr(select, "poll"):
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
