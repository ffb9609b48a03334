"""One HTTP request of a client that may be slow, rude or gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import h11
import httpx

Json = dict[str, Any]

SLOW = 4096  # bytes of a slow client's buffers


@dataclass(frozen=True)
class Manners:
    """Behaviour of a client.

    Attributes:
        sends: share of the request's bytes that it sends before it goes.
        leaves: it goes after so many bytes of the answer's body; -1: it stays.
        waits: seconds that it takes before it goes, or before it reads.
        pause: seconds between two reads of a few bytes, as long as ``patience`` lasts.
        reset: the connection is reset where it goes, rather than closed.
    """

    sends: float = 1.0
    leaves: int = -1
    waits: float = 0.0
    pause: float = 0.0
    patience: float = 2.0
    reset: bool = False

    @property
    def stays(self) -> bool:
        return self.sends == 1.0 and self.leaves < 0

    @property
    def slow(self) -> bool:
        return bool(self.pause) or (self.stays and bool(self.waits))


POLITE = Manners()


def manners(random: Random) -> Manners:
    """Most are polite."""
    drawn = random.random()
    if drawn < 0.80:
        return POLITE
    if drawn < 0.85:
        return Manners(sends=random.random() * 0.999, waits=random.choice([0, 0.2]))
    if drawn < 0.89:
        return Manners(leaves=0, waits=random.choice([0, 0.02, 0.3]))
    if drawn < 0.95:
        return Manners(leaves=random.randrange(1, 6000), reset=random.random() < 0.5)
    if drawn < 0.98:
        return Manners(pause=0.02)
    return Manners(waits=random.choice([1.0, 12.0]))


@dataclass
class Reply:
    """Outcome of a request.

    Attributes:
        counted: its head was sent, so that the server answers it, even without a reader.
        status: 0 where no answer has begun. whole: the answer came to its end.
        began, ended: seconds on the monotonic clock.
    """

    method: str
    path: str
    body: Any
    began: float
    ended: float = 0.0
    counted: bool = False
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    whole: bool = False

    @property
    def text(self) -> str:
        return self.data.decode()

    def json(self) -> Any:
        return json.loads(self.data)

    def response(self) -> httpx.Response:
        """The same as helpers of other tests take it."""
        request = httpx.Request(self.method, f"http://localhost{self.path}")
        return httpx.Response(self.status, headers=self.headers, content=self.data, request=request)


async def exchange(
    port: int, method: str, path: str, body: Any, headers: Json, way: Manners
) -> Reply:
    """Send a request, whose body is JSON or bytes, and read its answer, as ``way`` says."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
    fields = {"Host": "localhost", **headers, "Content-Length": str(len(content))}
    if body is not None:
        fields.setdefault("Content-Type", "application/json")
    parser = h11.Connection(h11.CLIENT)
    head = parser.send(h11.Request(method=method, target=path, headers=list(fields.items())))
    data = (head or b"") + (parser.send(h11.Data(data=content)) or b"")
    parser.send(h11.EndOfMessage())
    reply = Reply(method, path, body, time.monotonic())
    with contextlib.closing(socket.socket()) as raw:
        if way.slow:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW)
        raw.setblocking(False)
        with contextlib.suppress(OSError, h11.RemoteProtocolError):
            await _talk(raw, port, parser, data, len(head or b""), way, reply)
        if way.reset and reply.status:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reply.ended = time.monotonic()
    return reply


async def _talk(
    raw: socket.socket,
    port: int,
    parser: h11.Connection,
    data: bytes,
    head: int,
    way: Manners,
    reply: Reply,
) -> None:
    """Fills in ``reply``. Raises OSError where the connection is lost."""
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", port))
    sent = data[: int(len(data) * way.sends)]
    await loop.sock_sendall(raw, sent)
    reply.counted = len(sent) >= head
    await asyncio.sleep(way.waits)
    if way.sends < 1.0 or way.leaves == 0:
        return
    slowly = time.monotonic() + way.patience
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            if way.pause and time.monotonic() < slowly:
                await asyncio.sleep(way.pause)
                parser.receive_data(await loop.sock_recv(raw, 256))
            else:
                parser.receive_data(await loop.sock_recv(raw, 1 << 16))
        elif isinstance(event, h11.Response):
            reply.status = event.status_code
            reply.headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            reply.data += bytes(event.data)
            if 0 < way.leaves <= len(reply.data):
                return
        else:
            reply.whole = isinstance(event, h11.EndOfMessage)
            return
