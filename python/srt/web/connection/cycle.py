"""Cycle: one request of a connection and its answer; writing stops when the client is gone."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import ReferenceType

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def carrier_of(transport: asyncio.Transport) -> asyncio.BaseTransport:
    """Return the transport of the socket itself. With TLS it is below the TLS transport, which
    before Python 3.12 does not notice that the lower transport is closing."""
    below = getattr(transport, "_ssl_protocol", None)
    return getattr(below, "_transport", None) or transport


class Cycle(RequestResponseCycle):
    """A request and its answer. Nothing is written to a lost connection."""

    carrier: asyncio.BaseTransport

    def is_lost(self) -> bool:
        """Whether the connection is lost. A failed write closes the transport at once, but asyncio
        calls ``connection_lost`` only in the loop's next iteration, and logs writes until then."""
        if not self.disconnected and (self.transport.is_closing() or self.carrier.is_closing()):
            self.disconnected = True
            self.message_event.set()
        return self.disconnected

    async def send(self, message: Any) -> None:
        if not self.is_lost():
            await super().send(message)


class Unchunked(Cycle):
    """A cycle of HTTP/1.0, which has no chunks. The end of the connection ends an answer without a
    length."""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def write_chunk(weak: ReferenceType[Any], data: bytes) -> bool:
    """Write a chunk directly to the connection (``event_stream.CHUNK``). Return False, and write
    nothing, if the client is slow or gone; the caller must then use ``send``."""
    cycle = weak()
    if cycle is None or not cycle.chunked_encoding or cycle.is_lost():
        return False
    if cycle.flow.write_paused or not data:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True
