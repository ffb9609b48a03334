"""Base of the fake services: a server in a thread, and the ways in which a reply may fail."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TypeVar

S = TypeVar("S", bound="FakeService")


@dataclass(frozen=True)
class Refuse:
    """An error reply. ``as_event``: in the middle of a stream instead."""

    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    as_event: bool = False


@dataclass(frozen=True)
class Broken:
    """``body`` is sent as it is, and the connection dropped: before any head where it is None.

    Of a streamed reply, after the events of ``text``.
    """

    body: bytes | None = None
    text: str = ""


@dataclass(frozen=True)
class Late:
    """The reply comes after ``seconds``; of a stream, its second half."""

    seconds: float
    text: str


class FakeService:
    """``with`` it, the server answers at ``url``, which ends with ``base``.

    A subclass answers one connection in ``_serve``. In ``_prepare`` it makes what belongs to the
    loop.
    """

    base = ""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self: S) -> S:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _run(self) -> None:
        """Serve until the end is requested; replies in flight are cancelled with the loop."""
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._prepare()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{self.base}"
        self._ready.set()
        await self._end.wait()
        server.close()

    def _prepare(self) -> None:
        pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError
