"""HostPipe: frames arrive whole and in order, whatever pieces the system makes of them."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest
from sglang.srt.inferlet.host.host_pipe import LENGTH, FrameReader, LoopPipe, ThreadPipe


def frames_of(seed: int) -> list[bytes]:
    r = random.Random(seed)
    return [r.randbytes(r.choice([0, 1, 5, 300, 70_000])) for _ in range(r.randint(1, 20))]


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_of_any_pieces(seed: int) -> None:
    r, frames = random.Random(seed), frames_of(seed)
    stream = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)
    reader, found = FrameReader(), []
    while stream:
        size = r.choice([1, 3, 4, 1000, 100_000])
        found += reader.add(stream[:size])
        stream = stream[size:]
    assert found == frames


def run(test: Callable[[LoopPipe, ThreadPipe, list[bytes]], Awaitable[None]]) -> None:
    async def main() -> None:
        mine, other = socket.socketpair()
        found: list[bytes] = []
        pipe, far = LoopPipe(mine, found.append), ThreadPipe(other)
        try:
            await asyncio.wait_for(test(pipe, far, found), 30)
        finally:
            pipe.close()
            pipe.close()
            other.close()

    asyncio.run(main())


def test_server_sends_more_than_the_socket_takes() -> None:
    frames = [b"a", bytes(3 << 20), b"", b"end"]

    async def test(pipe: LoopPipe, far: ThreadPipe, found: list[bytes]) -> None:
        for frame in frames:
            pipe.send(frame)  # nothing reads yet

        def read() -> list[bytes]:
            came: list[bytes] = []
            while len(came) < len(frames):
                came += far.read() or []
            return came

        assert await asyncio.to_thread(read) == frames
        pipe.send(b"more")
        assert await asyncio.to_thread(far.read) == [b"more"]

    run(test)


def test_threads_of_the_host_send_at_once() -> None:
    async def test(pipe: LoopPipe, far: ThreadPipe, found: list[bytes]) -> None:
        def send(name: int) -> None:
            for index in range(50):
                far.send(bytes([name, index]) * 4000)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        while len(found) < 200:
            await asyncio.sleep(0.001)
        for name in range(4):
            own = [frame for frame in found if frame[0] == name]
            assert own == [bytes([name, index]) * 4000 for index in range(50)]

    run(test)


def test_last_frames_of_a_dead_host_are_read() -> None:
    async def test(pipe: LoopPipe, far: ThreadPipe, found: list[bytes]) -> None:
        far.send(b"last")
        far._socket.close()
        pipe.drain()
        assert found == [b"last"]
        with pytest.raises(OSError, match="Broken pipe"):
            pipe.send(b"to nothing")

    run(test)


def test_host_sees_that_the_server_is_gone() -> None:
    async def test(pipe: LoopPipe, far: ThreadPipe, found: list[bytes]) -> None:
        pipe.close()
        assert far.read() is None
        with pytest.raises(OSError, match="Broken pipe"):
            far.send(b"to nothing")

    run(test)
