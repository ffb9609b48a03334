"""Cut proxy: passes bytes on between clients and a server, and ends all connections on demand."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

READ = 1 << 16
START_SECONDS = 10.0


class CutProxy:
    """A TCP proxy of ``host:port`` on 127.0.0.1, in a thread of its own.

    Attributes:
        url: where clients connect.
        cuts: connections that were ended by ``cut``.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url, self.cuts = "", 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-proxy", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise OSError("the proxy of the chaos did not start")

    def cut(self) -> None:
        """End every connection at once, on both sides."""
        self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        """Stop; connections end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connect, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._cut()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _cut(self) -> None:
        self.cuts += len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        both = {writer, back}
        self._writers |= both
        try:
            with suppress(asyncio.CancelledError):  # the proxy ends
                await asyncio.gather(_pass(reader, back), _pass(there, writer))
        finally:
            self._writers -= both


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(READ):
            target.write(data)
            await target.drain()
    target.close()
