"""Batches of programs that a server runs: ``run_batch(..., on="server")``."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_program_server import FakeProgramServer
from helpers.waiting import until
from sglang.backend.mock import Mock
from sglang.errors import BatchError, ProgramError, TraceError, Unsupported
from sglang.on_server.server_session import LOOP

ITEMS = [{"task": f"task {number}"} for number in range(12)]


def script(prompt: Any, params: Any) -> str:
    return f" {len(prompt.text)} chars"


@sgl.function
def write(s: sgl.ProgramState, task: str) -> str:
    s += "Write code of " + task + ".\nCode:" + sgl.gen("code", max_tokens=8)
    forks = s.fork(2)
    for number, fork in enumerate(forks):
        fork += f"\nReview {number}:" + sgl.gen("review", max_tokens=8)
    return s["code"] + forks[0]["review"] + forks[1]["review"]


@sgl.function
def scored(s: sgl.ProgramState, task: str) -> None:
    s += task + sgl.gen("count", dtype=int)
    if task != "task 3":
        return
    assert s["count"] > 0  # needs the value


@pytest.fixture
def server() -> FakeProgramServer:
    return FakeProgramServer(script)


def plain(**options: Any) -> list[sgl.ProgramState]:
    return list(write.run_batch(ITEMS, backend=Mock(script), **options))


def same(states: list[sgl.ProgramState], wanted: list[sgl.ProgramState]) -> None:
    assert [s.text() for s in states] == [s.text() for s in wanted]
    assert [s["code"] for s in states] == [s["code"] for s in wanted]
    assert [s.ret_value for s in states] == [s.ret_value for s in wanted]


def test_states_are_those_of_a_plain_batch(server: FakeProgramServer) -> None:
    same(list(write.run_batch(ITEMS, backend=server, on="server")), plain())
    assert len(server.submissions) == len(ITEMS)
    assert server.opened == 1
    assert "commit" not in {call.kind for call in server.calls}  # a server shares by itself


def test_generators_event_loops_and_compiled_programs(server: FakeProgramServer) -> None:
    options: dict[str, Any] = {"backend": server, "on": "server"}
    same(list(write.run_batch(ITEMS, generator_style=True, num_threads=2, **options)), plain())

    async def run() -> list[sgl.ProgramState]:
        return [s async for s in write.arun_batch(ITEMS, concurrency=3, **options)]

    same(asyncio.run(run()), plain())
    compiled = list(write.compile().run_batch(ITEMS, **options))
    assert [s.text() for s in compiled] == [s.text() for s in plain()]


def test_no_more_is_sent_than_may_run(server: FakeProgramServer) -> None:
    server.hold = asyncio.Event()
    states: list[Any] = []
    batch = threading.Thread(
        target=lambda: states.extend(
            write.run_batch(ITEMS, backend=server, num_threads=3, on="server")
        )
    )
    batch.start()
    until(lambda: len(server.submissions) == 3)
    seen = len(server.submissions)
    LOOP.loop.call_soon_threadsafe(server.hold.set)
    batch.join()
    assert seen == 3
    same(states, plain())


def test_items_that_no_server_can_run_fail_alone(server: FakeProgramServer) -> None:
    numbers = FakeProgramServer(lambda prompt, params: "7")
    with pytest.raises(BatchError, match="1 of 12 items failed; the first, item 3") as caught:
        scored.run_batch(ITEMS, backend=numbers, on="server")
    assert isinstance(caught.value.errors[3], TraceError)
    assert [s["count"] for n, s in enumerate(caught.value.states) if n != 3] == ["7"] * 11
    states = scored.run_batch(ITEMS, backend=numbers, on="server", return_errors=True)
    assert [n for n, state in enumerate(states) if state.error()] == [3]

    async def run() -> list[Any]:
        batch = scored.arun_batch(ITEMS, backend=numbers, on="server", return_errors=True)
        return [state.error() async for state in batch]

    assert [n for n, error in enumerate(asyncio.run(run())) if error] == [3]


def test_what_the_server_fails_is_the_items_error() -> None:
    def fails(prompt: Any, params: Any) -> str:
        if "task 5" in prompt.text:
            raise RuntimeError("no such luck")
        return " fine"

    with pytest.raises(BatchError, match="item 5") as caught:
        write.run_batch(ITEMS, backend=FakeProgramServer(fails), on="server")
    assert isinstance(caught.value.errors[5], ProgramError)
    assert set(caught.value.errors) == {5}


def test_leaving_a_generator_cancels_on_the_server(server: FakeProgramServer) -> None:
    batch: Any = write.run_batch(
        ITEMS, backend=server, on="server", generator_style=True, num_threads=4
    )
    assert next(batch)["code"]
    server.hold = asyncio.Event()
    next(batch)
    batch.close()
    until(lambda: all(run.events[-1]["event"] == "end" for run in server.runs.values()))
    assert len(server.submissions) < len(ITEMS)


def test_results_are_kept_in_a_file(server: FakeProgramServer, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    options: dict[str, Any] = {"backend": server, "on": "server", "results_file": file}
    write.run_batch(ITEMS[:5], **options)
    same(list(write.run_batch(ITEMS, **options)), plain())
    assert len(server.submissions) == len(ITEMS)
    same(plain(results_file=file), plain())  # the same lines, wherever the items have run


def test_a_trace_holds_each_item_once(server: FakeProgramServer) -> None:
    trace = sgl.Trace()
    write.run_batch(ITEMS[:3], backend=server, on="server", trace=trace)
    assert [group.name for group in trace.groups] == ["write"] * 3


def test_wrong_places_and_backends_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="on is 'moon'"):
        write.run_batch(ITEMS, backend=FakeProgramServer(script), on="moon")
    with pytest.raises(Unsupported):
        write.run_batch(ITEMS, backend=Mock(script), on="server")
    with pytest.raises(Unsupported):
        write.arun_batch(ITEMS, backend=Mock(script), on="server")
