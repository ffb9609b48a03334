"""Turns at the gate of programs: which program a request belongs to, and the one end of each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from helpers.http_server import Served, serve_text
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.clock import ManualClock
from sglang.srt.core.ints import ints
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.interception.gate import ProgramGate
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.held_context import Claim, Resumption
from sglang.srt.requests.completion.output import Finish, Output
from sglang.srt.runtime.fair_queue import TurnAborted
from sglang.srt.runtime.parking.parked_store import ParkedContext, ParkFacts, ParkingScope
from sglang.srt.runtime.parking.text_index import ContextText
from sglang.srt.runtime.program_gate import LINGER, POLL, ProgramTurns

ENDS = ("answer", "park", "fail", "lose", "leave")


@dataclass
class Calls:
    """Calls that come later, by a clock that the test moves."""

    clock: ManualClock = field(default_factory=ManualClock)
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def later(self, seconds: float, call: Callable[[], None]) -> Calls:
        self.due.append((self.clock.now() + seconds, call))
        return self

    def cancel(self) -> None: ...

    async def advance(self, seconds: float) -> None:
        """Move on in steps of the gate's looks, and let what may run now run."""
        for _ in range(max(round(seconds / POLL), 1)):
            self.clock.advance(POLL)
            now, found = self.clock.now(), self.due
            self.due = [one for one in found if one[0] > now + 1e-9]
            for moment, call in found:
                if moment <= now + 1e-9:
                    call()
            await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@dataclass
class Desk:
    """A gate with requests whose ends the test decides."""

    room: float = 100.0
    calls: Calls = field(default_factory=Calls)
    contexts: dict[int, ParkedContext] = field(default_factory=dict)
    running: dict[int, asyncio.Future[str]] = field(default_factory=dict)
    outcomes: dict[int, str] = field(default_factory=dict)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gate = ProgramGate(self.room, 10.0, 1.0, 1)
        self.turns = ProgramTurns(gate, self.calls.clock, self.calls.later)

    def request(self, number: int, size: int = 60, after: int | None = None, **more: Any) -> None:
        """Begin request ``number``, which goes on with the context of ``after``."""
        link = None if after is None else Resumption(after, 0, 0.0)
        request = CompletionRequest(
            ints([number] * size), SamplingParams(max_new_tokens=1), rid=str(number), resumed=link,
            **more,
        )  # fmt: skip
        self.tasks[number] = asyncio.ensure_future(self._follow(number, request))

    async def _follow(self, number: int, request: CompletionRequest) -> None:
        try:
            async for output in self.turns.follow(request, lambda: self._run(number, request)):
                assert output.finish is not None
                self._ended(number, output.finish.reason)
        except TurnAborted:
            self._ended(number, "abort")
        except EngineLost:
            self._ended(number, "lost")
        except ValueError:
            self._ended(number, "failed")
        except asyncio.CancelledError:
            self._ended(number, "left")
            raise

    def _ended(self, number: int, reason: str) -> None:
        assert number not in self.outcomes, "a second end"
        self.outcomes[number] = reason

    async def _run(self, number: int, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        future = self.running[number] = asyncio.get_running_loop().create_future()
        try:
            end = await future
        finally:
            del self.running[number]
        if end == "lose":
            raise EngineLost("the engine is gone")
        if end == "fail":
            raise ValueError
        if end == "park":
            facts = ParkFacts(request.rid, 0.0, Claim("", "", 0.0, 60.0))
            scope = ParkingScope(request.owner)
            context = ParkedContext(number, scope, request.prompt, ContextText(), facts, 60.0)
            self.contexts[number] = context
            self.turns.parked(context)
        yield Output(0, RequestStats(), finish=Finish("stop"))

    async def end(self, number: int, how: str = "answer") -> None:
        if how == "leave":
            self.tasks[number].cancel()
        else:
            self.running[number].set_result(how)
        await settled()

    def close(self, number: int) -> None:
        self.turns.removed(self.contexts.pop(number))


def test_a_program_that_parks_stays_inside_and_others_wait() -> None:
    async def play() -> None:
        desk = Desk()
        desk.request(1)
        desk.request(2)
        await settled()
        assert list(desk.running) == [1]
        assert desk.turns.waiting == 1
        await desk.end(1, "park")
        desk.request(3, size=70, after=1)
        await settled()
        assert list(desk.running) == [3], "its program is inside"
        desk.close(1)
        await desk.end(3)
        assert not desk.running, "its context may still be parked"
        await desk.calls.advance(LINGER)
        assert list(desk.running) == [2], "its program has ended"
        await desk.end(2, "park")
        await desk.calls.advance(LINGER)
        assert desk.turns.gate.inside == 1
        desk.close(2)
        assert desk.turns.gate.inside == 0
        assert desk.turns.counts() == {
            "inside": 0, "waiting": 0, "working_set": 0.0, "entered": 2, "put_out": 0,
            "turns": 3, "seconds": pytest.approx(LINGER),
        }  # fmt: skip
        desk.turns.check()

    asyncio.run(play())


def test_a_session_is_a_program_and_a_concurrent_turn_another() -> None:
    async def play() -> None:
        desk = Desk()
        desk.request(1, program="session a")
        desk.request(2, program="session a")
        await settled()
        assert list(desk.running) == [1], "no name is a way around the gate"
        await desk.end(1)
        await desk.calls.advance(LINGER)
        desk.request(3, program="session a")
        desk.request(4, program="session a", owner="another")
        await settled()
        assert list(desk.running) == [3]
        await desk.end(3, "lose")
        desk.turns.lost()
        await settled()
        assert list(desk.running) == [2], "no program has KV any more"
        await desk.end(2, "leave")
        await settled()
        assert list(desk.running) == [4]
        await desk.end(4)
        assert desk.outcomes == {1: "stop", 3: "lost", 2: "left", 4: "stop"}
        desk.turns.check()

    asyncio.run(play())


STEPS = st.lists(
    st.tuples(st.sampled_from(("new", "go on", "end", "abort", "close", "wait")),
              st.integers(0, 9), st.sampled_from(ENDS)),
    max_size=30,
)  # fmt: skip


@settings(deadline=None)
@given(STEPS)
def test_every_turn_ends_once_and_nothing_is_left(steps: list[tuple[str, int, str]]) -> None:
    """Answers, failures, lost engines, clients that leave and aborts, in any order, while turns
    wait and while they run."""

    async def play() -> None:
        desk, number = Desk(), 0
        for kind, which, end in steps:
            alive = [n for n in desk.tasks if n not in desk.outcomes]
            parked = list(desk.contexts)
            if kind in ("new", "go on"):
                number += 1
                after = parked[which % len(parked)] if kind == "go on" and parked else None
                desk.request(number, size=10 + 13 * which, after=after, owner=str(which % 3))
            elif kind == "end" and alive:
                chosen = alive[which % len(alive)]
                await desk.end(chosen, end if chosen in desk.running else "leave")
                if end == "lose":
                    desk.turns.lost()
            elif kind == "abort" and alive:
                desk.turns.abort(str(alive[which % len(alive)]))
            elif kind == "close" and parked:
                desk.close(parked[which % len(parked)])
            elif kind == "wait":
                await desk.calls.advance(which * POLL)
            await settled()
            desk.turns.check()
        while desk.tasks.keys() - desk.outcomes.keys():
            for running in list(desk.running):
                await desk.end(running)
            await desk.calls.advance(POLL)
        await desk.calls.advance(LINGER)
        for number in list(desk.contexts):
            desk.close(number)
        desk.turns.check()
        assert (desk.turns.gate.inside, desk.turns.gate.waiting, desk.turns.waiting) == (0, 0, 0)
        await asyncio.gather(*desk.tasks.values(), return_exceptions=True)

    asyncio.run(play())


# -- a server -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose gate lets one program in at a time."""
    config = Config.of(program_gate=1e-4, program_gate_quantum=0.2, program_gate_half_life=60.0)
    with serve_text(tmp_path_factory.mktemp("toy"), config, seconds=0.002) as served:
        yield served


def metrics(served: Served) -> dict[str, float]:
    text = served.client.get("/metrics").text
    found = re.findall(r"^sglang:(\w*program\w*)\{.*\} (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found if not name.endswith("_created")}


def body(text: str, tokens: int = 20, **more: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"text": text, "sampling_params": sampling, **more}


def test_programs_go_on_one_after_the_other_and_all_end(served: Served) -> None:
    """Four agents of three turns each through a gate for one: their texts are those of a server
    without, each turn of a program goes on with the parked context, and the books balance."""

    def agent(name: int) -> list[str]:
        first = served.client.post("/generate", json=body(f"agent {name}", park={"tool": "t"}))
        texts, found = [first.json()["text"]], first.json()
        for turn in range(2):
            handle = found["meta_info"]["finish_reason"]["resume"]
            more = {"park": {"tool": "t"}} if turn == 0 else {}
            reply = served.client.post("/generate", json={"resume": handle, "text": " so", **more})
            assert reply.status_code == 200, reply.text
            found = reply.json()
            texts.append(found["text"])
        return texts

    with ThreadPoolExecutor(4) as pool:
        both = [list(pool.map(agent, range(4))) for _ in range(2)]
    assert both[0] == both[1]
    found = metrics(served)
    assert found["program_turns_total"] == 24
    assert 8 <= found["programs_entered_total"] <= 24
    assert found["program_gate_seconds_total"] > 0
    assert found["num_programs_waiting"] == 0
    served.state.runtime.parked.check()
    served.client.idle()


def test_a_turn_at_the_gate_can_be_aborted_and_is_a_request(served: Served) -> None:
    turns = served.state.runtime.programs
    assert turns is not None
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(served.client.post, "/generate", json=body("a", 400, rid="long"))
        while served.client.stats()["running"] < 1:
            pass
        other = pool.submit(served.client.post, "/generate", json=body("b", rid="other"))
        while not metrics(served)["num_programs_waiting"]:
            pass
        assert turns.waiting == 1
        served.client.post("/abort_request", json={"rid": "other"})
        assert other.result().json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert not long.done()
        served.client.post("/abort_request", json={"rid": "long"})
        assert long.result().json()["meta_info"]["finish_reason"]["type"] == "abort"
    served.client.idle()
    turns.check()


@pytest.mark.parametrize(
    ("setting", "value", "limit"),
    [
        ("program_gate", -0.1, "from 0, for no gate, to 10"),
        ("program_gate", float("nan"), "from 0, for no gate, to 10"),
        ("program_gate_quantum", 0.0, "above 0, at most 86400"),
        ("program_gate_half_life", float("inf"), "above 0, at most 86400"),
    ],
)
def test_a_gate_that_could_not_work_is_refused(setting: str, value: float, limit: str) -> None:
    with pytest.raises(ValueError, match=f"--{setting.replace('_', '-')} is .*{limit}"):
        Config.of(**{setting: value})
