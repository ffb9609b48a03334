"""Engines as users start them: ``sglang engine`` with the embedded model, and fronts over TCP."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.launched import PYTHON, best_model
from sglang.ir.constraint import Constraint
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.process import spawn
from sglang.srt.remote.curve_keys import read_front_keys, write_keys
from sglang.srt.remote.front_link import EngineRefused
from sglang.srt.remote.handshake import Expected, vocabulary_digest
from sglang.srt.remote.remote_engine import RemoteEngine
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.completion.serving_engines import Assignment, OneEngine
from sglang.srt.tokenizer import Tokenizer

READY = re.compile(r"sglang engine (\S+) at (tcp://\S+) - (\d+) KV tokens\n")
FLAGS = ["--threads", "1", "--max-total-tokens", "8192"]


class Engine:
    """A started engine and its address."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "sglang.srt.cli", "engine", *FLAGS, *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(PYTHON)},
        )  # fmt: skip

    def ready(self) -> str:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        found = READY.fullmatch(line)
        assert found, (line, "" if line else self.process.stderr.read())
        return found[2]


@contextmanager
def started(arguments: list[str]) -> Iterator[Engine]:
    engine = Engine([*arguments, "--listen", "tcp://127.0.0.1:0"])
    try:
        yield engine
    finally:
        engine.process.kill()
        engine.process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return best_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    engine, front = write_keys(tmp_path_factory.mktemp("keys"))
    return str(engine), str(front)


@pytest.fixture(scope="module")
def shared(model: list[str], keys: tuple[str, str]) -> Iterator[str]:
    """The address of an engine that several tests use."""
    with started([*model, "--curve-keys", keys[0]]) as engine:
        yield engine.ready()


@pytest.fixture(scope="module")
def tokenizer(model: list[str]) -> Tokenizer:
    return Tokenizer.load(model[1] if model else "")


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


WISHES = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7, "top_p": 0.9},
    {"temperature": 1.0, "seed": 8, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"temperature": 0.0, "stop": ("e",)},
    {"temperature": 0.7, "seed": 9, "constraint": Constraint("regex", "[a-z]{4,20}( [a-z]+){2}!")},
]


async def texts(completer: Completer, count: int = 24) -> list[Output]:
    prompt = completer.tokenizer.encode("The quick brown fox")
    requests = [
        CompletionRequest(prompt, SamplingParams(max_new_tokens=count, **wish))  # type: ignore[arg-type]
        for wish in WISHES
    ]
    return [
        out for outs in await asyncio.gather(*map(completer.generate, requests)) for out in outs
    ]


def told(outputs: list[Output]) -> list[tuple[str, list[int]]]:
    return [(out.text, list(out.tokens)) for out in outputs]


def test_two_fronts_have_the_texts_of_an_engine_of_their_own(
    shared: str, keys: tuple[str, str], tokenizer: Tokenizer, model: list[str]
) -> None:
    async def test() -> None:
        expected = Expected(vocabulary=vocabulary_digest(tokenizer.token_bytes))
        fronts = [RemoteEngine(shared, read_front_keys(keys[1]), expected) for _ in range(2)]
        await asyncio.gather(*(front.ready(60) for front in fronts))
        both = await asyncio.gather(
            *(texts(Completer(front.client, tokenizer)) for front in fronts)
        )
        settings = {"model_path": model[1], "load_format": "dummy"} if model else {}
        own = await spawn(
            Config.of(threads=1, max_total_tokens=8192, **settings), tokenizer.token_bytes
        )
        alone = await texts(Completer(own.client, tokenizer))
        await own.stop()
        assert told(both[0]) == told(both[1]) == told(alone)
        stats = (await fronts[0].client.control("stats")).data
        assert stats["contexts"] == stats["protected_tokens"] == 0
        assert stats["failed_audits"] == stats["broken_sessions"] == 0
        for front in fronts:
            await front.stop()

    run(test)


def test_requests_of_a_killed_engine_go_on_with_another(
    shared: str, keys: tuple[str, str], tokenizer: Tokenizer, model: list[str]
) -> None:
    first: RemoteEngine
    other: RemoteEngine

    class Next(OneEngine):
        """The shared engine comes after the one that is killed."""

        async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
            await asyncio.wait_for(first.wait_lost(), 30)
            assert other.exact, other.differs
            return Assignment(other.client)

    async def test() -> None:
        nonlocal first, other
        with started([*model, "--curve-keys", keys[0]]) as engine:
            curve = read_front_keys(keys[1])
            first = RemoteEngine(engine.ready(), curve)
            await first.ready(60)
            other = RemoteEngine(shared, curve, Expected.like(first.facts))
            await other.ready(60)
            whole = await texts(Completer(other.client, tokenizer), 200)
            completer = Completer(Next(first.client), tokenizer)
            completer.max_resumes = 1
            pending = asyncio.create_task(texts(completer, 200))
            while (await first.client.control("stats")).data["generated_tokens"] < 40:
                await asyncio.sleep(0.001)
            engine.process.kill()
            assert not pending.done()
            assert told(await pending) == told(whole)
            assert first.client.lost is not None
            await other.stop()

    run(test)


def test_an_engine_that_is_stopped_tells_its_fronts(model: list[str], tokenizer: Tokenizer) -> None:
    async def test() -> None:
        with started([*model, "--tp-size", "2"]) as engine:
            front = RemoteEngine(engine.ready())
            await front.ready(60)
            assert front.facts.arithmetic.ranks == 2
            assert len(await texts(Completer(front.client, tokenizer))) == len(WISHES)
            engine.process.send_signal(signal.SIGTERM)
            reason = str(await asyncio.wait_for(front.wait_lost(), 30))
            assert "has ended the session: it was stopped (SIGTERM)" in reason
            assert await asyncio.to_thread(engine.process.wait, 30) == 0

    run(test)


def test_a_wrong_key_and_a_wrong_vocabulary_are_refused(
    shared: str, keys: tuple[str, str], tmp_path: Path
) -> None:
    async def test() -> None:
        wrong = read_front_keys(str(write_keys(tmp_path)[1]))
        for front, reason in (
            (RemoteEngine(shared, wrong), "another key"),
            (RemoteEngine(shared, read_front_keys(keys[1]), Expected(vocabulary="x")), "tokenizer"),
        ):
            with pytest.raises(EngineRefused, match=reason):
                await front.ready(60)

    run(test)


@pytest.mark.parametrize("case", ["open to all", "taken"])
def test_a_start_that_cannot_be_ends_with_one_line(case: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        host, code, reason = {
            "open to all": ("0.0.0.0", 2, "give --curve-keys FILE"),
            "taken": ("127.0.0.1", 1, "Address already in use; choose another with --listen"),
        }[case]
        engine = Engine(["--listen", f"tcp://{host}:{port}"])
        out, errors = engine.process.communicate(timeout=60)
    assert engine.process.returncode == code
    assert not out
    assert reason in errors.strip().split("\n")[-1]
    assert "Traceback" not in errors


def test_an_engine_that_does_not_listen_is_named() -> None:
    async def test() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            front = RemoteEngine(f"tcp://127.0.0.1:{unused.getsockname()[1]}")
            with pytest.raises(EngineLost, match="cannot be reached: nothing listens there"):
                await front.ready(0.1)

    run(test)
