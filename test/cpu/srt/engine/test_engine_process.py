"""The engine as a process: wire, hostile frames, death and orphans."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from helpers.tiny_model import write_config
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config, MemoryConfig, ModelConfig
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Close, Done, Event, Generate, Open, Tokens
from sglang.srt.engine import process as module
from sglang.srt.engine.client import EngineLost
from sglang.srt.engine.process import EngineProcess, Started, spawn
from sglang.srt.engine.wire import Wire
from sglang.srt.system import processes
from sglang.srt.system.processes import stopped_twice

VOCAB = [bytes([i % 256]) for i in range(160)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    path = write_config(tmp_path_factory.mktemp("model"))
    return Config(
        model=ModelConfig(model_path=path, load_format="dummy", dtype="float32", threads=1),
        memory=MemoryConfig(max_total_tokens=8192),
    )


@asynccontextmanager
async def engine(config: Config) -> AsyncIterator[EngineProcess]:
    process = await spawn(config, VOCAB)
    try:
        yield process
    finally:
        await process.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 250))


async def generate(process: EngineProcess, count: int = 8) -> list[int]:
    """A greedy completion of a fixed prompt."""
    client = process.client
    context, request = client.new_id(), client.new_id()
    sampling = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
    opening = Open(context, ints([3, 4, 5]).tobytes())
    inbox = client.submit(
        request, [opening, Advance(context, request, Generate(sampling), close=True)]
    )
    events: list[Event] = [event async for event in inbox]
    assert isinstance(events[-1], Done)
    return [token for event in events if isinstance(event, Tokens) for token in event.tokens]


def test_generates_and_leaves_nothing_behind(config: Config) -> None:
    async def test() -> None:
        async with engine(config) as process:
            directory = process._started.directory
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            first = await generate(process)
            assert len(first) == 8
            assert await generate(process) == first
            stats = (await process.client.control("stats")).data
            assert stats["cached_tokens"] > 0
            assert stats["protected_tokens"] == 0
            pid = process.pid
        assert not psutil.pid_exists(pid)
        assert not directory.exists()
        with pytest.raises(EngineLost):
            process.client.send(Close(1))

    run(test)


FRAMES = (b"\x00", b"\xff" * 40, b"\x91\x82\xa4type\xa4nope\xa1x\x01", os.urandom(1 << 20))


def test_a_temporary_directory_too_long_for_a_socket(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    async def test() -> None:
        async with engine(config) as process:
            directory = process._started.directory
            assert directory.parent != deep
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            assert len(await generate(process)) == 8
        assert not directory.exists()

    run(test)
    assert not list(deep.iterdir())
    monkeypatch.setattr(processes, "SHORT_DIRECTORIES", (str(deep), str(tmp_path / "none")))
    with pytest.raises(OSError, match=r"at most 10\d bytes.*set TMPDIR to a shorter directory"):
        Started(config)
    assert not list(deep.iterdir())


def test_a_vocabulary_that_cannot_be_written_leaves_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    wires: list[Wire] = []

    class Recorded(Wire):
        def __init__(self, address: str, take: Callable[[bytes], None]) -> None:
            super().__init__(address, take)
            wires.append(self)

    def full(self: Started, token_bytes: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sglang.srt.engine.wire.Wire", Recorded)
    monkeypatch.setattr(Started, "provide", full)

    async def test() -> None:
        started = Started(config)
        with pytest.raises(OSError, match="No space"):
            EngineProcess(started, [b"a"])
        assert all(wire._socket.closed for wire in wires)
        assert started.child.returncode is not None
        assert not started.directory.exists()

    run(test)


def test_malformed_frames_are_dropped_and_counted(config: Config) -> None:
    async def test() -> None:
        async with engine(config) as process:
            golden = await generate(process)
            for sent, frame in enumerate(FRAMES, 1):
                process._wire.send(frame)
                assert await generate(process) == golden
                stats = (await process.client.control("stats")).data
                assert stats["bad_frames"] == sent

    run(test)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_a_dead_engine_fails_what_is_pending(config: Config, how: signal.Signals) -> None:
    async def test() -> None:
        async with engine(config) as process:
            await generate(process)
            pending = asyncio.create_task(generate(process, count=6000))
            while not (await process.client.control("stats")).data["running"]:
                await asyncio.sleep(0.01)
            os.kill(process.pid, how)
            with pytest.raises(EngineLost):
                await pending
            lost = await process.wait_lost()
            assert "engine process" in str(lost)
            with pytest.raises(EngineLost):
                await generate(process)
        assert not psutil.pid_exists(process.pid)

    run(test)


def test_an_engine_that_is_stopped_while_it_loads_is_lost(config: Config) -> None:
    async def test() -> None:
        process = EngineProcess(Started(config), VOCAB)
        try:
            os.kill(process.pid, signal.SIGSTOP)
            with pytest.raises(EngineLost, match="stopped from outside while starting"):
                await asyncio.wait_for(process.ready(), 60)
        finally:
            process.kill()
        assert not psutil.pid_exists(process.pid)

    run(test)


def test_a_moments_stop_is_no_loss(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell may stop server and engine and let the server go on first. The engine is stopped at
    every other look of the parent."""
    looks, watched = 0, stopped_twice

    def stopped(pid: int) -> Callable[[], bool]:
        look = watched(pid)

        def looked() -> bool:
            nonlocal looks
            looks += 1
            if looks % 2:
                return look()
            os.kill(pid, signal.SIGSTOP)
            while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)
            found = look()
            os.kill(pid, signal.SIGCONT)
            return found

        return looked

    monkeypatch.setattr(module, "stopped_twice", stopped)
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.05)

    async def test() -> None:
        async with engine(config) as process:
            golden, before = await generate(process), looks
            while looks < before + 8:
                await asyncio.sleep(0.01)
            assert await generate(process) == golden

    run(test)


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        path = write_config(tmp_path / "odd", architectures=["NoSuchModel"])
        bad = Config(model=ModelConfig(model_path=path, load_format="dummy"))
        with pytest.raises(EngineLost, match="NoSuchModel"):
            await spawn(bad, VOCAB)

    run(test)


def test_the_engine_dies_with_its_parent(config: Config, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, sys\n"
        "from sglang.srt.config import Config\n"
        "from sglang.srt.engine.process import spawn\n"
        "async def main():\n"
        f"    config = Config.of(model_path={config.model.model_path!r}, load_format='dummy',"
        " dtype='float32', max_total_tokens=512)\n"
        "    process = await spawn(config, [b'x'] * 160)\n"
        "    print(process.pid, process._started.directory, flush=True)\n"
        "    await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    line = parent.stdout.readline()
    pid = int(line.split()[0])
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid), "an orphan engine lives on"
