"""A branch that fails leaves nothing behind: no request in the runtime, no thread, no task."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from helpers.counted import reaches
from helpers.threads import running_threads

pytest.importorskip("torch")

SETTINGS = {"max_total_tokens": 32768, "log_level": "warning", "device": "cpu", "threads": 1}
BRANCHES = 6


@pytest.fixture(scope="module", params=["engine", "http"])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind: Any = sgl.Engine if request.param == "engine" else sgl.Runtime
    with kind(**SETTINGS) as started:
        yield getattr(started, "endpoint", started)


def running(backend: Any) -> int:
    return int(backend.get_server_info()["stats"]["running"])


def begin(s: sgl.ProgramState) -> sgl.ForkGroup:
    """Branches that would generate for long."""
    s += "Once upon a time"
    forks = s.fork(BRANCHES)
    forks += lambda i: f" {i}" + sgl.gen("x", min_tokens=2000, max_tokens=2000)
    return forks


def nothing_is_left(backend: Any, threads: int) -> None:
    assert reaches(lambda: running(backend) == 0)
    stats = backend.get_server_info()["stats"]
    assert stats["waiting"] == stats["contexts"] == 0
    assert stats["aborted"] >= BRANCHES - 1
    assert reaches(lambda: running_threads() <= threads)


def last_line(error: BaseException) -> str | None:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return frame.line if frame.filename == __file__ else frame.filename


def test_the_program_raises(backend: Any) -> None:
    @sgl.function
    def program(s):
        begin(s)
        assert reaches(lambda: running(backend) == BRANCHES)
        raise ZeroDivisionError("mine")  # the program's own

    threads = running_threads()
    with pytest.raises(ZeroDivisionError) as caught:
        program.run(backend=backend)
    assert last_line(caught.value) == 'raise ZeroDivisionError("mine")  # the program\'s own'
    nothing_is_left(backend, threads)


def test_a_branch_is_refused(backend: Any) -> None:
    @sgl.function
    def program(s):
        begin(s)
        assert reaches(lambda: running(backend) == BRANCHES)
        failing = s.fork(1)[0]
        failing += sgl.gen("y", logit_bias={10**7: 1.0})  # refused
        return failing["y"]

    threads = running_threads()
    with pytest.raises(sgl.ProgramError, match="logit_bias") as caught:
        program.run(backend=backend)
    assert last_line(caught.value) == 'failing += sgl.gen("y", logit_bias={10**7: 1.0})  # refused'
    nothing_is_left(backend, threads)


def test_an_asynchronous_program_raises_or_is_cancelled(backend: Any) -> None:
    @sgl.function
    async def program(s, fault):
        forks = begin(s)
        while await asyncio.to_thread(running, backend) < BRANCHES:
            await asyncio.sleep(0.01)
        if fault:
            raise ZeroDivisionError("mine")
        ready.set()
        await forks.ajoin()

    async def main() -> None:
        with pytest.raises(ZeroDivisionError, match="mine"):
            await program.arun(True, backend=backend)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        task = asyncio.create_task(program.arun(False, backend=backend))
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    ready = asyncio.Event()
    threads = running_threads()
    asyncio.run(main())
    nothing_is_left(backend, threads)


def test_an_item_of_a_batch_fails(backend: Any) -> None:
    @sgl.function
    def program(s, number):
        if number == 0:
            assert reaches(lambda: running(backend) == BRANCHES)
            raise ZeroDivisionError("mine")
        s += f"Once upon a time {number}" + sgl.gen("x", min_tokens=2000, max_tokens=2000)

    items = [(number,) for number in range(BRANCHES + 1)]
    threads = running_threads()
    with pytest.raises(ZeroDivisionError, match="mine"):
        list(program.run_batch(items, backend=backend, generator_style=True))
    nothing_is_left(backend, threads)
