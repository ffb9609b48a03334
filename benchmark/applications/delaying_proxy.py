"""DelayingProxy: a slow network between a client and a server of this machine."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from threading import Thread

DELAY = (0.1, 0.15)  # seconds of a message


class DelayingProxy:
    """TCP proxy in a thread, in which each message arrives later.

    Args:
        port: of the server.

    Attributes:
        port: of the proxy. server: port of the server. messages: number of those to the server.
    """

    def __init__(self, port: int) -> None:
        self.messages = self.port = 0
        self.server, self._random = port, random.Random(0)
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def close(self) -> None:
        """Stop the thread."""
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        found = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = found.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.server)
        with suppress(asyncio.CancelledError):  # at the proxy's end
            await asyncio.gather(self._carry(reader, back, True), self._carry(there, writer, False))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool
    ) -> None:
        """Pass on what comes, each piece after its delay and in order."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                moment, data = await queue.get()
                await asyncio.sleep(moment - time.monotonic())
                if not data:
                    writer.close()
                    return
                writer.write(data)

        task = asyncio.create_task(write())
        last = 0.0
        while True:
            data = b""
            with suppress(OSError):
                data = await reader.read(1 << 16)
            self.messages += counted and bool(data)
            last = max(last, time.monotonic() + self._random.uniform(*DELAY))
            queue.put_nowait((last, data))
            if not data:
                await task
                return
