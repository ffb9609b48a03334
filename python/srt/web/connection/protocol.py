"""Protocol: one HTTP connection and its limits.

uvicorn's protocol over httptools reads and answers; this one adds the limits that uvicorn lacks:

head       bytes (431), and seconds until all headers have arrived (408)
body       seconds without progress (408)
answer     seconds in which the client reads none of the sent bytes: the request is aborted
pipeline   requests sent before earlier ones were answered; an excess one gets 429 after the others
others     simultaneous connections (503)

If an answer did not wait for its request's body, the rest of the body is read and dropped for
``LINGER`` seconds: closing the connection while the client writes could lose the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
import uuid
from functools import partial
from typing import Any
from weakref import ref

import httptools
from sglang.srt.config import EdgeConfig
from sglang.srt.web.connection.cycle import Cycle, Unchunked, carrier_of, write_chunk
from sglang.srt.web.exchange.error_replies import ServerError, error_response
from sglang.srt.web.exchange.event_stream import CHUNK
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

SLICE = 4096  # bytes of a head that are parsed between two checks of its size
LINGER = 2.0  # seconds for which a refused connection stays open
PROGRESS = 1024  # least bytes within a time limit that count as progress
WRITE_BUFFER = 64 << 10  # unsent bytes from which on an answer waits for its client
SEND_BUFFER = 256 << 10  # size of the kernel's send buffer; the kernel doubles it
PIPELINE = 8  # most waiting requests of a connection
SPARE = 128  # connections beyond the limit that get a 503

_EXCESS = (
    f"More than {PIPELINE} requests were sent on this connection before the answer to the one "
    "before them; those up to here are answered, send the others again."
)

IDLE, HEAD, BODY = "idle", "head", "body"
_FRAMING = (b"content-length", b"transfer-encoding")


class Protocol(HttpToolsProtocol):
    """One connection. ``part``: the part that is being read, IDLE, HEAD or BODY; None: nothing more
    is read."""

    limits = EdgeConfig()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.part: str | None = HEAD
        self._begun = False  # the head has more than empty lines
        self._mute = False  # the parser reads a head made by ``_decline``, not the client's
        self._size = self._parsed = 0  # bytes of the head: given to the parser, and parsed
        self._received = 0  # received bytes of the body
        self._reading: asyncio.TimerHandle | None = None
        self._timed: str | None = None  # the part that ``_reading`` limits
        self._writing: asyncio.TimerHandle | None = None
        self._cycles: list[Any] = []  # requests not answered yet
        self._lost = False
        self._excess = False  # more requests came than may wait

    # -- the connection ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._carrier = carrier_of(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER)
        # The kernel's own buffer would grow to megabytes behind a client that does not read.
        connection = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the client is gone already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        limit, count = self.limits.max_connections, len(self.connections)
        if count > limit + SPARE:
            transport.abort()
        elif count > limit:
            message = f"The server has {limit} connections (--max-connections); try again later."
            self._refuse(ServerError("too_many_connections", message))
        self._watch_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all requests of the connection; uvicorn would only end the last one."""
        self.part, self._lost = None, True
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        self._drop()
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # breaks a reference cycle
        del self._carrier

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_closing()

    def _drop(self) -> None:
        """End every request in flight, because the client is gone."""
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._cycles.clear()

    def _close(self) -> None:
        self.part = None
        self._drop()
        self.transport.close()
        self._watch_closing()

    def _refuse(self, error: ServerError) -> None:
        """Close the connection. First answer the request that is being read with ``error``, unless
        its answer has begun, or earlier requests have no answer yet."""
        if self.part is None:
            return
        reading_body, self.part = self.part == BODY, None
        busy = [cycle for cycle in self._cycles if not cycle.response_complete]
        if reading_body:
            mine = len(busy) == 1 and not busy[0].response_started  # no answer to it has begun
        else:
            mine = not busy
        if not mine:
            self._close()
            return
        self._drop()
        self._end_with(error)

    def _end_with(self, error: ServerError) -> None:
        """Answer with ``error``, and close after LINGER seconds, so that the client can read it."""
        self.transport.write(self._written(error))
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client is gone already
                self.transport.write_eof()
        self.loop.call_later(LINGER, self._close)

    def _written(self, error: ServerError) -> bytes:
        response = error_response(error)
        headers = [
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"connection", b"close"),
            (b"x-request-id", uuid.uuid4().hex.encode()),
        ]
        lines = [b"".join((name, b": ", value, b"\r\n")) for name, value in headers]
        return b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)])

    # -- reading ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. A head is parsed in slices, to detect an excess size early."""
        at = 0
        while at < len(data) and self.part is not None and not self.transport.is_closing():
            if self.part == IDLE:
                self._begin_head()
            slicing = self.part == HEAD
            piece = data[at : at + SLICE] if slicing else data[at:]
            at += self._parse(piece)
            if self.part == HEAD:
                self._size = self._size + len(piece) if slicing else self._parsed
                self._verify_head(self._size)
        self._watch_reading()

    def _parse(self, data: bytes) -> int:
        """Parse bytes, and return how many: all, unless they request a protocol upgrade."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline()
            return int(offer.args[0])
        except httptools.HttpParserError:
            self.send_400_response("This is no HTTP request, or it could be read as another one.")
        return len(data)

    def _decline(self) -> None:
        """Decline a protocol upgrade. The parser takes the following bytes for another protocol,
        but they are the request's body; so let the parser read a new head with the same framing."""
        framing = [line for line in self.headers if line[0] in _FRAMING]
        if self.part == BODY and framing:
            lines = [b"".join((name, b": ", value, b"\r\n")) for name, value in framing]
            self._mute = True
            self.parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"]))
            self._mute = False

    def on_message_begin(self) -> None:
        if self._mute:
            return
        self._begin_head()
        self._begun = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._mute:
            return
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Trailers after a chunked body are counted and dropped."""
        self._count(len(name) + len(value) + 4)
        if self.part == HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._mute:
            return
        super().on_headers_complete()
        self.part, self._received = BODY, 0
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self.cycle)
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        self.cycle.__class__ = Cycle  # uvicorn has no setting for the class
        self.cycle.carrier = self._carrier  # type: ignore[attr-defined]
        if scope["http_version"] == "1.0":
            self.cycle.chunked_encoding = False
            self.cycle.__class__ = Unchunked
        # A weak reference, since the cycle holds its scope: no reference cycle delays the release.
        scope["extensions"] = {CHUNK: partial(write_chunk, ref(self.cycle))}
        # uvicorn stops reading in this state, and so would not notice a disconnect.
        self.flow.resume_reading()
        if len(self.pipeline) > PIPELINE:
            self._read_no_more()
            raise ValueError("too many requests at once")

    def _read_no_more(self) -> None:
        """Drop the last request and all bytes after it. It is refused once the earlier requests
        are answered."""
        self.pipeline.popleft()
        self._cycles.pop()
        self.cycle, _ = self.pipeline[0]
        self.part, self._excess = None, True

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        super().on_body(body)
        if self.pipeline and len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._close()
            raise ValueError("too large a request behind another")

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and any(name in _FRAMING for name, _ in self.headers):
            return  # ``_decline`` continues with the body
        super().on_message_complete()
        if self.part is not None:
            self.part = IDLE

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.part == BODY and self.cycle.response_complete:
            self.loop.call_later(LINGER, self._close_unread, self.cycle)
        if self._excess and self.cycle.response_complete and not self.transport.is_closing():
            self._end_with(ServerError("rate_limit_exceeded", _EXCESS))
        self._watch_closing()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to bytes that are not HTTP, or are ambiguous."""
        self._refuse(ServerError("malformed_request", msg))

    def _begin_head(self) -> None:
        self.part, self._begun, self._size, self._parsed = HEAD, False, 0, 0

    def _count(self, size: int) -> None:
        """Count bytes of the head. Raises ValueError, which ends parsing, if it is too large."""
        self._parsed += size
        self._verify_head(self._parsed)
        if self.part is None:
            raise ValueError("the head is too large")

    def _verify_head(self, size: int) -> None:
        limit = self.limits.max_header_bytes
        if size > limit:
            message = f"The headers have more than {limit} bytes (--max-header-bytes)."
            self._refuse(ServerError("headers_too_large", message))

    def _close_unread(self, cycle: Any) -> None:
        if self.part == BODY and self.cycle is cycle:
            self._close()

    # -- time -------------------------------------------------------------------------------------

    def _watch_reading(self) -> None:
        """Run a timer for the part that is being read."""
        if self.part == self._timed:
            return
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._timed, limits = self.part, self.limits
        if self.part == HEAD:
            self._reading = self.loop.call_later(limits.header_timeout, self._end_head)
        elif self.part == BODY:
            self._reading = self.loop.call_later(
                limits.body_timeout, self._end_body, self.cycle, self._received
            )

    def _end_head(self) -> None:
        self._timed = None
        if any(not cycle.response_complete for cycle in self._cycles):
            self._watch_reading()
        elif not self._begun:
            self._close()
        else:
            seconds = self.limits.header_timeout
            message = f"The headers did not arrive in {seconds:g} s (--header-timeout)."
            self._refuse(ServerError("request_timeout", message))

    def _end_body(self, cycle: Any, received: int) -> None:
        self._timed = None
        moved = self.cycle is not cycle or self._received - received >= PROGRESS
        if moved or self.flow.read_paused:
            self._watch_reading()
            return
        seconds = self.limits.body_timeout
        message = f"The body stood still for {seconds:g} s (--body-timeout)."
        self._refuse(ServerError("request_timeout", message))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None and not self.transport.is_closing():
            self._writing.cancel()
            self._writing = None

    def _watch_closing(self) -> None:
        """Limit the time of a closing connection, which a client that does not read would block."""
        if self.transport.is_closing() and self._writing is None and not self._lost:
            self._watch_writing()

    def _watch_writing(self) -> None:
        self._writing = self.loop.call_later(
            self.limits.stream_write_timeout, self._end_writing, self._unread()
        )

    def _end_writing(self, before: int) -> None:
        if before - self._unread() >= PROGRESS:
            self._watch_writing()
        else:
            self.transport.abort()

    def _unread(self) -> int:
        """Return the number of bytes that the client has not read: in this process and, on Linux,
        in the kernel."""
        waiting = bytearray(4)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket"), termios.TIOCOUTQ, waiting)
        return self.transport.get_write_buffer_size() + int.from_bytes(waiting, sys.byteorder)


def protocol(edge: EdgeConfig) -> type[Protocol]:
    """Return a protocol class with the limits of ``edge``."""

    class Limited(Protocol):
        limits = edge

    return Limited
