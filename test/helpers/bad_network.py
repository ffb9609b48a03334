"""Networks that fail: a TCP proxy that can be cut, paused or slowed, and a proxy of ZMQ frames that
repeats them or changes their order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import zmq


class TcpProxy:
    """Passes bytes on between clients and ``address``.

    Attributes:
        flowing: cleared: nothing passes, and no end learns of it.
        delay: seconds that each piece takes.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname, parts.port
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.delay = 0.0
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, back]
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self.flowing.wait()
                await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        """End all connections, on both sides."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        self._server.close()
        self.flowing.set()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(address: str) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(address)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


Mangle = Callable[[str, bytes], list[bytes]]


class FrameProxy:
    """Passes frames of one front on to an engine and back, as ``mangle(way, frame)`` has them:
    ``way`` is "to the engine" or "to the front"."""

    def __init__(self, address: str, mangle: Mangle) -> None:
        self._context, self._mangle = zmq.Context(), mangle
        self._front = self._context.socket(zmq.ROUTER)
        self._front.bind("tcp://127.0.0.1:*")
        self.address = self._front.getsockopt_string(zmq.LAST_ENDPOINT)
        self._engine = self._context.socket(zmq.DEALER)
        self._engine.connect(address)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poller, identity = zmq.Poller(), b""
        poller.register(self._front, zmq.POLLIN)
        poller.register(self._engine, zmq.POLLIN)
        while not self._over.is_set():
            ready = dict(poller.poll(20))
            if self._front in ready:
                identity, frame = self._front.recv_multipart()
                for one in self._mangle("to the engine", frame):
                    self._engine.send(one)
            if self._engine in ready:
                for one in self._mangle("to the front", self._engine.recv()):
                    self._front.send_multipart((identity, one))
        self._front.close(linger=0)
        self._engine.close(linger=0)

    def __enter__(self) -> FrameProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._context.term()
