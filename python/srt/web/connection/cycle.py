"""Cycle: one request of a connection and its answer. Writing stops when the client is gone."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import ReferenceType

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def carrier_of(transport: asyncio.Transport) -> asyncio.BaseTransport:
    """The transport of the socket: below TLS another one, which asyncio's TLS transport does not
    ask whether it is closing (before Python 3.12)."""
    below = getattr(transport, "_ssl_protocol", None)
    return getattr(below, "_transport", None) or transport


class Cycle(RequestResponseCycle):
    """A request and its answer, of which nothing is written to a connection that is lost."""

    carrier: asyncio.BaseTransport

    def is_lost(self) -> bool:
        """Whether nothing that is written gets to the client. A write that fails closes the
        transport; asyncio calls ``connection_lost`` in the loop's next turn only, and until then
        it logs what is written."""
        if not self.disconnected and (self.transport.is_closing() or self.carrier.is_closing()):
            self.disconnected = True
            self.message_event.set()
        return self.disconnected

    async def send(self, message: Any) -> None:
        if not self.is_lost():
            await super().send(message)


class Unchunked(Cycle):
    """A cycle of HTTP/1.0, which has no chunks: an answer without a length ends with its
    connection."""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def write_chunk(weak: ReferenceType[Any], data: bytes) -> bool:
    """Write a chunk, as the extension says. False where the client is slow or gone: ``send`` then
    waits or ends."""
    cycle = weak()
    if cycle is None or not cycle.chunked_encoding or cycle.is_lost():
        return False
    if cycle.flow.write_paused or not data:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True
