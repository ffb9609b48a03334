"""A fleet over real engine processes, whose workers need no model."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers import engine_child
from helpers.fake_worker import fake_info
from helpers.toy_tokenizer import byte_level
from helpers.waiting import reached
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Embed
from sglang.srt.engine import process
from sglang.srt.engine.client import EngineLost
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.request_error import RequestError
from sglang.srt.routing.router import Router
from sglang.srt.runtime import supervisor as supervising
from sglang.srt.runtime.fleet import engine_fleet
from sglang.srt.runtime.fleet.engine_fleet import Fleet
from sglang.srt.runtime.fleet.fleet_setup import completer_on, fleet_of, supervisors
from sglang.srt.runtime.fleet.members import Members
from sglang.srt.runtime.fleet.slow_engines import SlowEngines
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState

pytestmark = pytest.mark.slow  # starts processes


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    """Engine processes of this test, all of them ``engine_child``."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, engine_child.__file__, *command[3:]], **options)
        started.append(child)
        return child

    patched = {"Popen": popen, "DEVNULL": subprocess.DEVNULL}
    monkeypatch.setattr(process, "subprocess", type("Patched", (), patched))
    monkeypatch.setattr(process, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(supervising, "PAUSE", 0.0)
    return started


@asynccontextmanager
async def serving(tokenizer: Tokenizer, **settings: Any) -> Any:
    """A fleet and a Completer on it, while its engines are kept."""
    config = Config.of(**{"dp_size": 2, "max_engine_restarts": 20, **settings})
    members = Members(supervisors(config, tokenizer))
    keeping: asyncio.Task[EngineLost] | None = None
    try:
        await members.start({})
        fleet = fleet_of(config, members)
        keeping = asyncio.create_task(fleet.run())
        await asyncio.sleep(0)
        yield fleet, completer_on(fleet, config, tokenizer)
    finally:
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await members.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 100))


def requests(tokenizer: Tokenizer, count: int, tokens: int = 300) -> list[CompletionRequest]:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0}, {"seed": 3}, {"seed": 4, "frequency_penalty": 0.7},
        {"seed": 5, "n": 2}, {"seed": 6, "stop": ("qz",)}, {"seed": 7, "min_new_tokens": 20},
    ]  # fmt: skip
    return [
        CompletionRequest(
            tokenizer.encode(f"the lazy dog jumps over number {index}"),
            SamplingParams(
                **{"max_new_tokens": tokens, "ignore_eos": True, **kinds[index % len(kinds)]}
            ),
        )
        for index in range(count)
    ]


async def texts(completer: Completer, asked: list[CompletionRequest]) -> list[Any]:
    found = await asyncio.gather(*(completer.generate(request) for request in asked))
    return [[(output.text, output.tokens, output.finish) for output in one] for one in found]


def test_requests_survive_the_loss_of_engines(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]]
) -> None:
    """Engines are killed one after the other while 24 requests are computed."""

    async def test() -> None:
        asked = requests(tokenizer, 24)
        async with serving(tokenizer, max_resumes=9) as (fleet, completer):
            whole = await texts(completer, asked)
            moved: list[int] = []
            fleet.resumed = lambda: moved.append(1)
            task = asyncio.create_task(texts(completer, asked))
            for nth in range(3):
                await reached(lambda: len(fleet.members.serving()) == 2)
                await asyncio.sleep(0.15)
                children[nth].kill()
            assert await task == whole
            assert moved, "no request has moved"
            await reached(lambda: len(fleet.members.serving()) == 2)
            assert await texts(completer, asked[:6]) == whole[:6]
            assert fleet.pending == 0
            assert fleet.router.engines.waiting == 0
            assert set(fleet.routed) == {"0", "1"}

    run(test)


def test_a_request_that_kills_its_engine_kills_two(
    tokenizer: Tokenizer,
    children: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All others finish, those that wait for their turn on the same engine too."""
    poison = 300
    monkeypatch.setenv("ENGINE_CHILD_POISON", str(poison))

    async def test() -> None:
        asked = requests(tokenizer, 40, 120)
        async with serving(tokenizer) as (fleet, completer):
            whole = await texts(completer, asked)
            task = asyncio.create_task(texts(completer, asked))
            await reached(lambda: completer.pending >= 40)
            with pytest.raises(EngineLost, match=r"in 2 engines that were lost.*--max-resumes"):
                await completer.generate(CompletionRequest(ints([poison] * 8), rid="poison"))
            assert await task == whole
            assert sum(child.poll() is not None for child in children) == 2
            assert len(children) >= 3
            assert fleet.pending == 0
            assert fleet.router.engines.waiting == 0

    run(test)


def test_prompts_go_where_their_beginning_is_cached(tokenizer: Tokenizer) -> None:
    async def test() -> None:
        async with serving(tokenizer) as (fleet, completer):
            sampling = SamplingParams(max_new_tokens=2, temperature=0.0, ignore_eos=True)
            systems = ["one two three four " * 40, "five six seven eight " * 40]
            cached = 0
            for turn in range(6):
                prompt = tokenizer.encode(systems[turn % 2] + str(turn))
                (output,) = await completer.generate(CompletionRequest(prompt, sampling))
                cached += output.stats.cached_tokens > len(prompt) // 2
            assert cached == 4, "all but the first of each system prompt"
            assert sum(fleet.routed.values()) == 6

    run(test)


def test_an_engine_may_leave(tokenizer: Tokenizer) -> None:
    """The requests of an engine that leaves go on elsewhere, and count no loss."""

    async def test() -> None:
        asked = requests(tokenizer, 12)
        async with serving(tokenizer, max_resumes=0) as (fleet, completer):
            whole = await texts(completer, asked)
            task = asyncio.create_task(texts(completer, asked))
            await reached(lambda: fleet.members.engines["1"].client.pending > 0)
            moved = await fleet.leave("1", 0.0)
            assert moved > 0
            assert await task == whole
            assert fleet.count == 1
            assert await texts(completer, asked) == whole
            with pytest.raises(RequestError, match="'1'; there are: 0"):
                await fleet.leave("1", 0.0)
            with pytest.raises(RequestError, match="'0' is the only one"):
                await fleet.leave("0", 0.0)

    run(test)


def test_an_engine_that_leaves_in_time_finishes_what_it_has(tokenizer: Tokenizer) -> None:
    async def test() -> None:
        async with serving(tokenizer) as (fleet, completer):
            asked = requests(tokenizer, 6, tokens=30)
            task = asyncio.create_task(texts(completer, asked))
            await reached(lambda: fleet.members.engines["0"].client.pending > 0)
            assert await fleet.leave("0", 60.0) == 0
            await task

    run(test)


def test_the_last_engine_that_is_given_up_ends_the_fleet(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]]
) -> None:
    async def test() -> None:
        async with serving(tokenizer, max_engine_restarts=0) as (fleet, completer):
            fleet_ends = asyncio.ensure_future(reached(lambda: fleet.lost is not None))
            children[0].kill()
            await reached(lambda: list(fleet.members._kept) == ["1"])
            assert fleet.members.serving() == ["1"]
            assert fleet.lost is None
            with pytest.raises(RequestError, match="'1' is the only one"):
                await fleet.leave("1", 0.0)
            await texts(completer, requests(tokenizer, 3, tokens=5))
            task = asyncio.create_task(texts(completer, requests(tokenizer, 3)))
            await reached(lambda: fleet.pending > 0)
            children[1].kill()
            await fleet_ends
            with pytest.raises(EngineLost, match=r"may continue|exited with code"):
                await task
            with pytest.raises(EngineLost, match="exited with code"):
                await texts(completer, requests(tokenizer, 1))
            with pytest.raises(EngineLost):
                await completer.control("stats")

    run(test)


def test_readings_are_shared_out(tokenizer: Tokenizer) -> None:
    async def test() -> None:
        async with serving(tokenizer, routing_policy="round-robin") as (fleet, completer):
            asked = [
                CompletionRequest(tokenizer.encode(f"number {index}"), SamplingParams())
                for index in range(8)
            ]
            reading = asyncio.ensure_future(completer.read(asked, Embed()))
            while not fleet.router.engines.waiting:
                await asyncio.sleep(0)
            assert fleet.router.engines.waiting == 8, "each prompt counts as a request"
            found = await reading
            assert fleet.router.engines.waiting == 0
            assert [done.stats.prompt_tokens for done in found] == [len(r.prompt) for r in asked]
            assert fleet.routed == {"0": 4, "1": 4}
            replies = await completer.control_each("stats")
            assert all(reply.data["received"] > 0 for reply in replies.values())
            total = (await completer.control("stats")).data["received"]
            assert total == sum(reply.data["received"] for reply in replies.values())

    run(test)


def test_engines_must_be_alike() -> None:
    class Engine:
        def __init__(self, name: str, **facts: Any) -> None:
            self.name, self.info = name, fake_info(64, 1, **facts)

        async def start(self, started: object) -> None:
            assert started is None

    async def start(**facts: Any) -> None:
        await Members([Engine("0"), Engine("1", **facts)]).start({})  # type: ignore[list-item]

    run(lambda: start(graph_rows=8))
    with pytest.raises(
        EngineLost, match="engine 1 is not like the others: purpose is embed, was generate"
    ):
        run(lambda: start(purpose="embed"))


def test_a_fleet_needs_the_engines_that_it_is_made_of() -> None:
    with pytest.raises(ValueError, match="--dp-size is 0; it must be at least 1"):
        Config.of(dp_size=0)
    with pytest.raises(ValueError, match="--dp-size is 65; one server starts at most 64"):
        Config.of(dp_size=65)
    with pytest.raises(ValueError, match=r"--slow-engine-factor is 1\.2; it must be from 1\.5"):
        Config.of(slow_engine_factor=1.2)
    with pytest.raises(ValueError, match="--routing-policy is 'best'; use one of"):
        Config.of(routing_policy="best")


def test_routes_show_engines_and_let_them_go(tokenizer: Tokenizer) -> None:
    async def test() -> None:
        async with serving(tokenizer) as (fleet, completer):
            state = ServerState(Config.of(), completer)
            state.fleet = fleet
            transport = httpx.ASGITransport(make_app(state))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                shown = (await http.get("/workers")).json()["workers"]
                assert [(each["name"], each["state"]) for each in shown] == [
                    ("0", "serving"), ("1", "serving"),
                ]  # fmt: skip
                body = {"url": "tcp://127.0.0.1:1"}
                reply = await http.post("/workers", json=body)
                assert reply.status_code == 400
                assert "no engines of other machines" in reply.json()["error"]["message"]
                left = await http.post("/workers/leave", json={"name": "0", "seconds": 0})
                assert [each["name"] for each in left.json()["workers"]] == ["1"]
                assert left.json()["moved"] == 0
                for name, status, said in (("0", 404, "there are: 1"), ("1", 400, "the only one")):
                    reply = await http.post("/workers/leave", json={"name": name})
                    assert reply.status_code == status
                    assert said in reply.json()["error"]["message"]

    run(test)


def test_a_silent_engine_is_left_out_of_statistics(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_fleet, "PATIENCE", 0.5)

    async def test() -> None:
        async with serving(tokenizer, watchdog_timeout=0.0) as (fleet, completer):
            children[0].send_signal(signal.SIGUSR1)  # the loop of the engine hangs
            assert set(await completer.control_each("stats")) == {"1"}
            with pytest.raises(asyncio.TimeoutError):
                await completer.control("flush", 1.0)
            assert fleet.lost is None

    run(test)


def test_an_engine_that_was_given_up_may_leave(
    tokenizer: Tokenizer, children: list[subprocess.Popen[bytes]]
) -> None:
    async def test() -> None:
        async with serving(tokenizer, dp_size=3, max_engine_restarts=0) as (fleet, completer):
            children[0].kill()
            await reached(lambda: len(fleet.members.serving()) == 2)
            await reached(lambda: len(fleet.router.engines) == 2)
            (lost,) = fleet.members.engines.keys() - set(fleet.members.serving())
            assert await fleet.leave(lost, 60.0) == 0, "nothing to wait for"
            leaves = [asyncio.ensure_future(fleet.leave(n, 0.0)) for n in fleet.members.serving()]
            found = await asyncio.gather(*leaves, return_exceptions=True)
            assert [type(each) for each in found if each != 0] == [RequestError]
            assert len(fleet.members.serving()) == len(fleet.router.engines) == 1
            await texts(completer, requests(tokenizer, 3, tokens=5))

    run(test)


def test_what_watches_an_engine_and_fails_gives_it_up(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: object) -> EngineLost:
        raise ZeroDivisionError

    monkeypatch.setattr(supervising.Supervisor, "run", fails)

    async def test() -> None:
        config = Config.of(dp_size=2)
        fleet = Fleet(Members(supervisors(config, tokenizer)), Router(), SlowEngines(0.0))
        assert "is not watched any more" in str(await fleet.run())

    run(test)
