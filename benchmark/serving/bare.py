"""Bare: a server that does nothing but write, to as many streams, as many pieces: what is left of
the cost of a token where there is no server to speak of.

    python -m benchmark.serving.bare STREAMS PIECES

It prints its port, waits for all streams, writes a piece to each of them every ``STEP_SECONDS``,
and prints the processor seconds that the writing took.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmark.peers.child import ROOT

STEP_SECONDS = 0.02
PIECE = b"data: " + b"x" * 200 + b"\n\n"  # as long as a chunk of /v1/completions
CHUNK = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)


class _Stream(asyncio.Protocol):
    def __init__(self, streams: list[asyncio.Transport]) -> None:
        self._streams = streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._streams.append(transport)


class _Reader(asyncio.Protocol):
    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def serve(streams: int, pieces: int) -> None:
    made: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Stream(made), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    while len(made) < streams:
        await asyncio.sleep(STEP_SECONDS)
    started = time.process_time()
    for _ in range(pieces):
        for transport in made:
            transport.write(CHUNK)
        await asyncio.sleep(STEP_SECONDS)
    print(time.process_time() - started, flush=True)
    for transport in made:
        transport.close()
    server.close()


async def cost(streams: int, pieces: int) -> float:
    """Processor seconds a piece, of a bare server in a process of its own. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmark.serving.bare", str(streams), str(pieces),
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    loop = asyncio.get_running_loop()
    readers = []
    for _ in range(streams):
        _, reader = await loop.create_connection(_Reader, "127.0.0.1", port)
        readers.append(reader)
    spent = float(await process.stdout.readline())
    await asyncio.gather(*(reader.ended for reader in readers))
    await process.wait()
    return spent / (streams * pieces)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
