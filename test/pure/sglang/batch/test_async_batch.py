"""arun_batch: what run_batch does, in an event loop and with no thread an item."""

from __future__ import annotations

import asyncio

import pytest
import sglang as sgl
from helpers.counted import Counted, reaches
from helpers.threads import running_threads

INTRO = "Classify each review as positive or negative, and say nothing else at all. "


@sgl.function
async def program(s, ending):
    s += INTRO + ending + sgl.gen("x")
    return ending, await s.aget("x")


@sgl.function
def plain(s, ending):
    s += INTRO + ending + sgl.gen("x")
    return ending, s["x"]


async def collect(states):
    return [state.ret_value async for state in states]


@pytest.mark.parametrize("function", [program, plain])
def test_states_come_in_order(function: sgl.SglFunction) -> None:
    backend, before = Counted(), running_threads()
    items = [(f"{i} ",) for i in range(500)]
    values = asyncio.run(collect(function.arun_batch(items, backend=backend, concurrency=20)))
    assert values == [(f"{i} ", "a b") for i in range(500)]
    assert backend.peak <= 20
    assert backend.threads <= before + 2 * 20 * (function is plain)
    assert reaches(lambda: running_threads() <= before)


@pytest.mark.parametrize("function", [program, plain])
def test_the_constant_prefix_is_computed_first(function: sgl.SglFunction) -> None:
    backend = Counted()
    asyncio.run(collect(function.arun_batch([("a ",), ("b ",)], backend=backend)))
    assert backend.commits == [INTRO]


def test_a_compiled_program_holds_no_thread() -> None:
    backend, before = Counted(), running_threads()

    @sgl.function
    def program(s, ending):
        s += ending + sgl.gen("x")
        return s["x"]

    batch = program.compile().arun_batch([("together ",)] * 50, backend=backend)
    backend.together = 50
    assert asyncio.run(collect(batch)) == ["a b"] * 50
    assert backend.threads <= before


def test_it_runs_little_ahead_of_its_reader() -> None:
    backend = Counted()

    async def main() -> None:
        states = program.arun_batch([("a ",)] * 500, backend=backend, concurrency=4)
        assert (await anext(states)).ret_value == ("a ", "a b")
        for _ in range(200):
            await asyncio.sleep(0)
        assert backend.calls <= 1 + 2 * 4
        await states.aclose()

    asyncio.run(main())


def test_an_error_ends_it_and_aborts_what_is_in_flight() -> None:
    backend = Counted()

    async def main() -> None:
        items = [("fine ",), ("bad ",), *[("endless ",)] * 100]
        states = program.arun_batch(items, backend=backend, concurrency=4)
        assert (await anext(states))["x"] == "a b"
        with pytest.raises(sgl.ProgramError, match=r"refused at .*test_async_batch.py:\d+$"):
            await anext(states)
        assert (backend.running, backend.calls) == (0, 2 + backend.aborted)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_errors_can_be_left_in_their_states() -> None:
    async def main() -> list[BaseException | None]:
        states = program.arun_batch(
            [("fine ",), ("bad ",), ("fine ",)], backend=Counted(), return_errors=True
        )
        return [state.error() async for state in states]

    first, second, third = asyncio.run(main())
    assert first is third is None
    assert "refused" in str(second)


@pytest.mark.parametrize("leave", ["cancel", "close"])
def test_leaving_aborts_what_is_in_flight(leave: str) -> None:
    backend = Counted()

    async def main() -> None:
        states = program.arun_batch(
            [("fine ",), *[("endless ",)] * 20], backend=backend, concurrency=4
        )
        await anext(states)
        reading = asyncio.ensure_future(anext(states))
        while backend.running < 4:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert (backend.running, backend.aborted) == (0, 4)

    async def closing() -> None:
        states = program.arun_batch(
            [("fine ",), *[("endless ",)] * 20], backend=backend, concurrency=4
        )
        await anext(states)
        while backend.running < 4:
            await asyncio.sleep(0)
        await states.aclose()
        assert (backend.running, backend.aborted) == (0, 4)

    asyncio.run(main() if leave == "cancel" else closing())


def test_options_are_checked_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="concurrency is 0"):
        program.arun_batch([("a",)], backend=Counted(), concurrency=0)
    with pytest.raises(TypeError, match="no option 'colour'"):
        program.arun_batch([("a",)], backend=Counted(), colour=1)
    with pytest.raises(TypeError, match="a dict or a tuple"):
        program.arun_batch(["a"], backend=Counted())


def test_a_progress_bar_and_max_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    mock = sgl.Mock(["one two three"] * 2)
    states = program.arun_batch([("a",), ("b",)], backend=mock, progress_bar=True, max_tokens=2)
    assert [value for _, value in asyncio.run(collect(states))] == ["one two"] * 2
    assert "2/2" in capsys.readouterr().err
