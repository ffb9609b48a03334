"""The server's handle on the host of guests, where hosts die or cannot be started."""

from __future__ import annotations

import asyncio
import errno
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.inferlet.host import host_process
from sglang.srt.inferlet.host.host_messages import (
    MARKS,
    GuestCalls,
    GuestImage,
    GuestLimits,
    HostReady,
)
from sglang.srt.inferlet.host.host_process import GuestEnded, HostProcess

IMAGE = GuestImage("", False, "", "{}", b"")


class Child:
    """A process that lives until ``code`` is set."""

    pid = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None: ...

    def wait(self) -> None: ...


class World:
    """Hosts that are never there: ``children`` were started, ``refusals`` are to come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.children: list[Child] = []
        self.refusals = 0
        monkeypatch.setattr(subprocess, "Popen", self._started)
        monkeypatch.setattr(host_process, "socket_directory", lambda name: self._made(directory))
        monkeypatch.setattr(host_process, "WATCH_SECONDS", 0.0)
        monkeypatch.setattr(host_process, "RETRY_SECONDS", 1e-9)

    def _made(self, directory: Path) -> Path:
        found = directory / str(len(self.children))
        found.mkdir(exist_ok=True)
        return found

    def _started(self, *_: Any, **__: Any) -> Child:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.children.append(Child())
        return self.children[-1]


def run(test: Callable[[HostProcess], Awaitable[None]]) -> None:
    async def main() -> None:
        host = HostProcess(1, 1 << 30)
        starting = asyncio.ensure_future(host.start())
        await asyncio.sleep(0)
        host._handle(HostReady("1"))
        await starting
        try:
            await asyncio.wait_for(test(host), 20)
        finally:
            await host.stop()

    asyncio.run(main())


def test_a_host_that_cannot_be_started_now_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World(monkeypatch, tmp_path)

    async def test(host: HostProcess) -> None:
        guest = host.launch(IMAGE, GuestLimits())
        turn = asyncio.ensure_future(guest.turn(None))
        await asyncio.sleep(0)
        (host._directory / MARKS).unlink()  # as one that clears /tmp does
        world.refusals, world.children[0].code = 20, 1
        while len(world.children) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (host.restarts, host.running) == (1, 1)
        host._handle(GuestCalls(guest.number, "[]", 0.0))
        assert await turn == "[]"

    run(test)


def test_a_run_behind_the_last_host_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World(monkeypatch, tmp_path)

    async def test(host: HostProcess) -> None:
        turn = asyncio.ensure_future(host.launch(IMAGE, GuestLimits()).turn(None))
        while not turn.done():
            world.children[-1].code = 9
            await asyncio.sleep(0)
        for ended in (turn, host.launch(IMAGE, GuestLimits()).turn(None)):
            with pytest.raises(GuestEnded, match="does not start; it exits with 9"):
                await ended
        assert host.running == 0

    run(test)
