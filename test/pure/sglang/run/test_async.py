"""arun: programs in an event loop, with no thread a call, and what happens when they are left."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
import sglang as sgl
from helpers.counted import Counted, reaches
from helpers.threads import running_threads


@sgl.function
async def tree(s, width):
    s += "Root: " + sgl.gen("root")
    assert await s.aget("root") == "a b"
    forks = s.fork(width)
    forks += lambda i: f" leaf {i}, together " + sgl.gen("leaf")
    await forks.ajoin()
    return len(await s.aget("leaf"))


@sgl.function
def plain(s, width):
    s += "Root: " + sgl.gen("root")
    forks = s.fork(width)
    forks += lambda i: f" leaf {i}, together " + sgl.gen("leaf")
    forks.join()
    return s["root"], len(s["leaf"])


@sgl.function
async def stuck(s, width):
    forks = s.fork(width)
    forks += "endless " + sgl.gen("x")
    await forks.ajoin()


@sgl.function
def plainly_stuck(s, width):
    forks = s.fork(width)
    forks += "endless " + sgl.gen("x")
    forks.join()


@pytest.mark.parametrize("program", [tree, plain])
def test_the_same_in_a_loop(program) -> None:
    state = asyncio.run(program.arun(3, backend=sgl.Mock(lambda prompt, params: "a b")))
    assert state.ret_value in (3, ("a b", 3))
    assert state.text() == "Root: a b"
    assert state["leaf"] == ["a b"] * 3
    assert state.usage.calls == 1 + 3


@pytest.mark.slow
@pytest.mark.parametrize("program", [tree, plain])
def test_a_thousand_forks_hold_no_threads(program) -> None:
    backend, before = Counted(together=1000), running_threads()
    state = asyncio.run(program.arun(1000, backend=backend))
    assert state["leaf"] == ["a b"] * 1000
    assert backend.calls == 1001
    assert backend.peak == 1000  # more than there may be threads
    assert backend.threads <= before + (program is plain)
    assert reaches(lambda: running_threads() <= before)


@pytest.mark.parametrize("program", [stuck, plainly_stuck])
def test_cancelling_aborts_the_calls(program) -> None:
    backend, before = Counted(), running_threads()

    async def main() -> None:
        task = asyncio.create_task(program.arun(50, backend=backend))
        while backend.running < 50:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (backend.running, backend.aborted) == (0, 50)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert reaches(lambda: running_threads() <= before)


def test_an_exception_of_the_program_aborts_the_calls() -> None:
    backend = Counted()

    @sgl.function
    async def program(s):
        forks = s.fork(20)
        forks += "endless " + sgl.gen("x")
        while backend.running < 20:
            await asyncio.sleep(0)
        raise ZeroDivisionError("mine")

    async def main() -> None:
        with pytest.raises(ZeroDivisionError, match="mine"):
            await program.arun(backend=backend)
        assert (backend.running, backend.aborted) == (0, 20)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_readers_are_told_of_a_failure_though_a_join_waits() -> None:
    """The join waits for a branch that has not begun, and wakes up while the tasks are
    cancelled."""
    backend = Counted()

    @sgl.function
    async def program(s):
        (fork,) = s.fork(1)
        fork += "endless " + sgl.gen("x")
        sgl.ForkGroup(fork.fork(1).states, s).join("concate_and_append")
        while backend.running < 1:
            await asyncio.sleep(0)
        raise ZeroDivisionError("mine")

    async def main() -> None:
        state = await program.arun(backend=backend, stream=True)
        error = await asyncio.wait_for(state.aerror(), 20)
        assert isinstance(error, ZeroDivisionError)

    asyncio.run(main())
    assert backend.aborted == 1


def test_a_plain_backend_is_aborted_too() -> None:
    """One without asynchronous calls: they are made in workers."""

    class Plain(Counted):
        async def acomplete(self, prompt, params):
            return await super(Counted, self).acomplete(prompt, params)

    backend = Plain()

    async def main() -> None:
        task = asyncio.create_task(stuck.arun(5, backend=backend))
        while backend.running < 5:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert reaches(lambda: (backend.running, backend.aborted) == (0, 5))


def test_reading_without_await_is_refused_where_it_would_block() -> None:
    @sgl.function
    async def program(s):
        s += sgl.gen("x")
        for read in (lambda: s["x"], s.text, s.sync, lambda: s.get_meta_info("x")):
            with pytest.raises(sgl.SglangError, match=r"use await: s.aget\(name\)"):
                read()
        await s.adone()
        return s["x"]  # there already

    state = asyncio.run(program.arun(backend=Counted()))
    assert state.ret_value == "a b"


def test_text_and_values_as_they_grow() -> None:
    @sgl.function
    def program(s):
        s += "Age: " + sgl.gen("age", dtype=int) + "\n" + sgl.gen("x")

    async def main(program: sgl.SglFunction) -> None:
        backend = sgl.Mock(lambda prompt, params: "42" if prompt.text.endswith("Age: ") else "a b")
        state = await program.arun(backend=backend, stream=True)
        values = [value async for value in state.value_async_iter("age")]
        assert values[-1] == 42
        assert "".join([p async for p in state.text_async_iter("x")]) == "a b"
        assert "".join([p async for p in state.text_async_iter()]) == "Age: 42\na b"
        assert await state.avalue("age") == 42
        assert await state.aerror() is None

    asyncio.run(main(program))


def test_a_stream_that_fails_tells_its_reader() -> None:
    @sgl.function
    async def program(s):
        s += "bad " + sgl.gen("x")  # fails
        await s.aget("x")

    async def main() -> None:
        state = await program.arun(backend=Counted(), stream=True)
        with pytest.raises(sgl.ProgramError, match=r"refused at .*test_async.py:\d+$"):
            async for _ in state.text_async_iter():
                pass
        assert isinstance(await state.aerror(), sgl.ProgramError)

    asyncio.run(main())


def test_as_in_a_notebook() -> None:
    """A cell runs inside a loop: ``run`` and ``run_batch`` block it, ``arun`` is awaited."""

    async def cell() -> None:
        backend = Counted()
        assert plain.run(2, backend=backend).ret_value == ("a b", 2)
        assert [s.ret_value for s in plain.run_batch([(2,), (3,)], backend=backend)] == [
            ("a b", 2), ("a b", 3),
        ]  # fmt: skip
        assert (await tree.arun(2, backend=backend)).ret_value == 2
        state = plain.run(2, backend=backend, stream=True, use_thread=True)
        assert await state.aget("root") == "a b"

    asyncio.run(cell())


def test_an_async_program_is_not_run_without_a_loop() -> None:
    with pytest.raises(TypeError, match=r"tree is async: await tree.arun"):
        tree.run(1, backend=Counted())
    with pytest.raises(TypeError, match=r"tree is async; use arun_batch"):
        tree.run_batch([(1,)], backend=Counted())


@pytest.mark.slow
def test_programs_of_many_loops_do_not_meet() -> None:
    """Each thread with a loop of its own, one backend for all."""
    backend = Counted()
    results: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(asyncio.run(tree.arun(20, backend=backend)).ret_value)
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [20] * 8
    gc.collect()


def test_what_an_event_loop_cannot_hold_is_still_raised() -> None:
    """A future takes no StopIteration, and a task that awaits it would wait for ever."""
    backend = sgl.Mock()

    @sgl.function
    def first(s, items):
        s += next(iter(items))

    async def run() -> list[sgl.ProgramState]:
        with pytest.raises(RuntimeError, match="StopIteration") as raised:
            await first.arun([], backend=backend)
        assert isinstance(raised.value.__cause__, StopIteration)
        state = await first.arun([], backend=backend, stream=True)
        with pytest.raises(RuntimeError, match="StopIteration"):
            async for _ in state.text_async_iter():
                pass
        return [
            s
            async for s in first.arun_batch(
                [{"items": []}] * 2, backend=backend, return_errors=True
            )
        ]

    assert len(asyncio.run(asyncio.wait_for(run(), 20))) == 2
