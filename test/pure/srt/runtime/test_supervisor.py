"""The supervisor over real processes of the real engine, whose worker needs no model."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from helpers import engine_child
from helpers.fake_worker import fake_info
from helpers.threads import running_threads
from helpers.toy_tokenizer import byte_level
from helpers.waiting import reached
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.progress import PASS, STOP_PATTERNS, Progress
from sglang.srt.engine import process
from sglang.srt.engine.client import EngineLost
from sglang.srt.engine.process import Stall
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime import supervisor as module
from sglang.srt.runtime.fleet.fleet_setup import completer_on
from sglang.srt.runtime.supervisor import Supervisor
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState

pytestmark = pytest.mark.slow  # starts processes

SECONDS = 60.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    """Engine processes of this test, all of them ``engine_child``."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        assert command[1:3] == ["-m", "sglang.srt.engine.process"]
        child = subprocess.Popen([sys.executable, engine_child.__file__, *command[3:]], **options)
        started.append(child)
        return child

    directories = tmp_path / "directories"
    directories.mkdir()
    patched = {"Popen": popen, "DEVNULL": subprocess.DEVNULL}
    monkeypatch.setattr(process, "subprocess", type("Patched", (), patched))
    monkeypatch.setattr(tempfile, "tempdir", str(directories))
    monkeypatch.setattr(process, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(module, "PAUSE", 0.0)
    return started


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 250))


async def golden(completion: Completer, count: int = 8, text: str = "the lazy dog") -> Output:
    prompt = completion.tokenizer.encode(text)
    sampling = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
    return (await completion.generate(CompletionRequest(prompt, sampling)))[0]


async def completer_of(supervisor: Supervisor, tokenizer: Tokenizer) -> Completer:
    """A Completer on the engine, once it has started."""
    await supervisor.start()
    return completer_on(supervisor, supervisor._config, tokenizer)


FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "hung": signal.SIGUSR1}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_engine_is_started_again(
    fault: str, tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    faulty, watchdog = asyncio.Event(), module.watchdog

    async def watched(engine: process.EngineProcess, seconds: float) -> None:
        """A busy engine answers late, too: only the one that hangs is watched, once it does."""
        await faulty.wait()
        if engine.pid == children[0].pid:
            await watchdog(engine, seconds)

    monkeypatch.setattr(module, "watchdog", watched)

    async def test() -> None:
        config = Config.of(watchdog_timeout=0.2 if fault == "hung" else 300.0)
        supervisor = Supervisor(config, tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        state = ServerState(config, completion)
        before, info = await golden(completion), completion.info
        whole = await golden(completion, 400, "jumps over")
        keeping = asyncio.create_task(supervisor.run())
        resumed: list[int] = []
        supervisor.resumed = lambda: resumed.append(1)
        transport = httpx.ASGITransport(make_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            pending = asyncio.create_task(golden(completion, 400, "jumps over"))
            while not (await completion.engines.clients[0].control("stats")).data["running"]:
                await asyncio.sleep(0.01)
            os.kill(children[0].pid, FAULTS[fault])
            faulty.set()
            await reached(lambda: "started again" in str(completion.lost))
            body = {"text": "a"}
            for reply in (await http.get("/health"), await http.post("/generate", json=body)):
                assert reply.status_code == 503
                assert reply.headers["retry-after"]
                assert reply.json()["error"]["code"] == "engine_lost"
                assert "it is being started again" in reply.json()["error"]["message"]
            await reached(lambda: completion.lost is None)
            assert (await http.get("/health")).status_code == 200
        after = await golden(completion)
        found = await pending
        assert (found.text, found.tokens) == (whole.text, whole.tokens)
        assert found.stats.completion_tokens == 400
        assert resumed == [1]
        assert (after.text, after.tokens) == (before.text, before.tokens)
        assert after.stats.cached_tokens <= 1, "the cache is empty, but for the warm-up"
        assert completion.info == info
        assert supervisor.restarts == 1
        keeping.cancel()
        await supervisor.stop()
        assert all(child.poll() is not None for child in children)

    run(test)


ILLEGAL = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegal..."


def test_a_lost_device_ends_the_engine_and_another_one_serves(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Two requests are in the pass that fails, one waits behind them."""
    file = tmp_path / "lost"
    monkeypatch.setenv("ENGINE_CHILD_LOST", str(file))

    async def test() -> None:
        supervisor = Supervisor(Config.of(), tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        before = await golden(completion)
        keeping = asyncio.create_task(supervisor.run())
        tasks = [asyncio.create_task(golden(completion, 900)) for _ in range(2)]
        while (await completion.engines.clients[0].control("stats")).data["running"] < 2:
            await asyncio.sleep(0.01)
        file.write_text(ILLEGAL)
        for task in tasks:
            with pytest.raises(RequestError, match=r"forward pass failed: .*illegal memory"):
                await task
        await reached(lambda: "device was lost" in str(completion.lost))
        await reached(lambda: completion.lost is None)
        assert not file.exists()
        assert children[0].wait() == process.DEVICE_LOST
        assert (await golden(completion)).tokens == before.tokens
        assert supervisor.restarts == 1
        keeping.cancel()
        await supervisor.stop()

    run(test)
    lines = [line for line in capfd.readouterr().err.splitlines() if "device was lost" in line]
    assert any("an illegal memory access was encountered" in line for line in lines)


def test_an_error_of_one_pass_does_not_end_the_engine(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = tmp_path / "lost"
    monkeypatch.setenv("ENGINE_CHILD_LOST", str(file))

    async def test() -> None:
        supervisor = Supervisor(Config.of(), tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        for _ in range(3):
            file.write_text("CUDA out of memory. Tried to allocate 2.00 GiB.")
            with pytest.raises(RequestError, match="out of memory"):
                await golden(completion)
        assert supervisor.restarts == 0
        assert children[0].poll() is None
        await supervisor.stop()

    run(test)


def test_an_engine_may_compute_its_passes_in_another_way() -> None:
    """Graphs may have found less memory this time; the answers are the same."""
    old = fake_info(64, 1)
    new = fake_info(64, 1, attention="triton", graph_rows=8, fallbacks=("graphs failed",))
    assert old != new
    assert not module.difference(old, new)
    assert module.difference(old, fake_info(32, 1, graph_rows=8)) == "capacity is 32, was 64"


async def stalling(completion: Completer, http: httpx.AsyncClient) -> asyncio.Task[list[Output]]:
    """A request that the engine's loop does not come back from, once /health has reported it."""
    sampling = SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True, stop_regex=("@",))
    prompt = completion.tokenizer.encode("the lazy dog")
    task = asyncio.create_task(completion.generate(CompletionRequest(prompt, sampling, rid="mine")))
    deadline = time.monotonic() + SECONDS
    while (reply := await http.get("/health")).status_code == 200:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert reply.status_code == 503
    assert reply.headers["retry-after"]
    assert reply.json()["error"]["code"] == "engine_stalled"
    assert "it is at stop patterns, for request" in reply.json()["error"]["message"]
    assert "('mine')" in reply.json()["error"]["message"]
    return task


def test_health_tells_of_steps_that_do_not_come(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The engine lives, and goes on later: its request is answered, and /health is 200 again."""
    file = tmp_path / "stall"
    file.touch()
    monkeypatch.setenv("ENGINE_CHILD_STALL", str(file))
    monkeypatch.setattr(process, "STALL_SECONDS", 0.5)

    async def test() -> None:
        supervisor = Supervisor(Config.of(), tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        transport = httpx.ASGITransport(make_app(ServerState(Config.of(), completion)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            before = await golden(completion, 4)
            task = await stalling(completion, http)
            assert completion.lost is None
            file.unlink()
            assert (await task)[0].tokens == before.tokens
            await reached(lambda: not completion.engines.clients[0].stalled)
            assert (await http.get("/health")).status_code == 200
        told = [record.message for record in caplog.records if "request" in record.message]
        assert len([text for text in told if "stop patterns" in text]) == 1, "logged once"
        await supervisor.stop()

    run(test)


def test_an_engine_is_killed_after_health_has_told(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names the request and the stage at which the loop was."""
    file = tmp_path / "stall"
    file.touch()
    monkeypatch.setenv("ENGINE_CHILD_STALL", str(file))
    monkeypatch.setattr(module, "GRACE", 0.1)

    async def test() -> None:
        config = Config.of(watchdog_timeout=2.0, max_engine_restarts=0)
        supervisor = Supervisor(config, tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        keeping = asyncio.create_task(supervisor.run())
        transport = httpx.ASGITransport(make_app(ServerState(config, completion)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            task = await stalling(completion, http)
        with pytest.raises(
            EngineLost, match=r"did not answer for 2 s; it is at stop patterns.*mine"
        ):
            await task
        assert "stop patterns" in str(await keeping)
        await supervisor.stop()

    run(test)


def test_a_long_forward_pass_is_no_stall() -> None:
    """A long sleep of the observing process is no stall either, nor are many short steps."""
    progress = Progress()
    stall = Stall(progress, interval=0.25, seconds=10.0)
    for _ in range(1000):
        progress.at(PASS)
        assert not stall.look()
    for _ in range(1000):
        progress.turn()
        progress.at(STOP_PATTERNS, 7)
        assert not stall.look()
    looks = [stall.look() for _ in range(60)]
    assert looks == [False] * 39 + [True] * 21
    assert (stall.stage, stall.request) == ("stop patterns", 7)
    progress.at(PASS)
    assert stall.look(), "the step has not ended"
    progress.turn()
    assert not stall.look()


def test_an_answer_that_waits_to_be_read_is_an_answer(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]]
) -> None:
    async def test() -> None:
        supervisor = Supervisor(Config.of(watchdog_timeout=0.3), tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        client = completion.engines.clients[0]
        keeping, transmit, pings = asyncio.create_task(supervisor.run()), client._transmit, [0]

        def suspended(verbs: Any) -> None:
            transmit(verbs)
            pings[0] += 1
            time.sleep(0.7)  # this process does nothing meanwhile, as one that was stopped

        client._transmit = suspended
        await reached(lambda: pings[0] == 3)
        assert supervisor.restarts == 0
        assert completion.lost is None
        keeping.cancel()
        await supervisor.stop()
        assert len(children) == 1

    run(test)


@pytest.mark.parametrize("limit", [0, 2])
def test_it_gives_up_after_so_many_restarts(
    limit: int, tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]]
) -> None:
    async def test() -> None:
        supervisor = Supervisor(Config.of(max_engine_restarts=limit), tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        keeping = asyncio.create_task(supervisor.run())
        for life in range(limit + 1):
            await reached(lambda: completion.lost is None)
            assert supervisor.restarts == life
            children[-1].kill()
            await reached(lambda: completion.lost is not None)
        lost = await asyncio.wait_for(keeping, SECONDS)
        assert "exited with code -9" in str(lost)
        assert len(children) == limit + 1
        await supervisor.stop()

    run(test)


def test_restarts_long_ago_do_not_count(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(Config.of(max_engine_restarts=2), tokenizer)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    answers = []
    for now[0] in (0.0, 1.0, 2.0, module.WINDOW + 0.5, module.WINDOW + 0.6, module.WINDOW + 1.5):
        answers.append(supervisor._another())
    assert answers == [True, True, False, True, False, True]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("FAULT", "the disk is gone", "the disk is gone"), ("DEVICE", "cuda", "device is cuda, was")],
)
def test_an_engine_that_cannot_come_back_as_it_was_ends_it(
    name: str, value: str, reason: str, tokenizer: Tokenizer,
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async def test() -> None:
        supervisor = Supervisor(Config.of(max_engine_restarts=2), tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        monkeypatch.setenv(f"ENGINE_CHILD_{name}", value)
        children[0].kill()
        lost = await asyncio.wait_for(supervisor.run(), SECONDS)
        assert reason in str(lost)
        assert len(children) == 3
        assert completion.lost is not None
        await supervisor.stop()
        assert all(child.poll() is not None for child in children)

    run(test)


def test_the_memory_of_the_first_engine_is_that_of_the_next(
    tokenizer: Tokenizer,
    children: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        supervisor = Supervisor(Config.of(), tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        keeping = asyncio.create_task(supervisor.run())
        monkeypatch.setenv("ENGINE_CHILD_CAPACITY", "1024")  # less is free by now
        children[0].kill()
        await reached(lambda: supervisor.restarts == 1)
        assert completion.info.capacity == 4096
        keeping.cancel()
        await supervisor.stop()

    run(test)


def test_the_end_in_the_middle_of_a_restart_leaves_nothing(
    tokenizer: Tokenizer,
    children: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        supervisor = Supervisor(Config.of(), tokenizer)
        await completer_of(supervisor, tokenizer)
        monkeypatch.setenv("ENGINE_CHILD_SECONDS", "60")
        keeping = asyncio.create_task(supervisor.run())
        children[0].kill()
        await reached(lambda: len(children) == 2)
        begun = time.monotonic()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await supervisor.stop()
        assert time.monotonic() - begun < 30  # loading would take twice that
        assert children[1].poll() is not None
        assert not list(Path(tempfile.gettempdir()).iterdir())

    run(test)


def test_the_second_signal_kills_an_engine_that_is_loading(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]]
) -> None:
    async def test() -> None:
        supervisor = Supervisor(Config.of(), tokenizer)
        loading = asyncio.create_task(supervisor.start())
        await reached(lambda: bool(children))
        supervisor.kill()
        assert children[0].poll() is not None
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        assert not list(Path(tempfile.gettempdir()).iterdir())

    run(test)


def counts() -> dict[str, int]:
    gc.collect()
    own = psutil.Process()
    return {
        "descriptors": own.num_fds(),
        "threads": running_threads(),
        "tasks": len(asyncio.all_tasks()),
        "children": len(own.children(recursive=True)),
        "directories": len(list(Path(tempfile.gettempdir()).iterdir())),
    }


def test_restarts_leave_nothing_behind(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]]
) -> None:
    async def test() -> None:
        supervisor = Supervisor(Config.of(max_engine_restarts=30, max_resumes=0), tokenizer)
        completion = await completer_of(supervisor, tokenizer)
        keeping = asyncio.create_task(supervisor.run())
        before, first = {}, await golden(completion)
        for life in range(1, 5):
            pending = asyncio.create_task(golden(completion, 1000))
            await asyncio.sleep(0)
            children[-1].kill()
            with pytest.raises(EngineLost):
                await pending
            await reached(lambda: supervisor.restarts == life)  # noqa: B023
            if life == 2:
                await asyncio.sleep(0.1)
                before = counts()
        # Leftovers of other tests in this process may end meanwhile, so less is no fault.
        await reached(lambda: all(count <= before[name] for name, count in counts().items()))
        assert (await golden(completion)).tokens == first.tokens
        keeping.cancel()
        await supervisor.stop()

    run(test)
