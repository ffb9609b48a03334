"""map: programs over forks, side by side, also those that run other programs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import sglang as sgl


@sgl.function
def answer(s: Any, question: str, end: str = "\n") -> Any:
    s += question + sgl.gen("a") + end
    return s["a"]


@sgl.function
def all_of(s: Any, questions: list[Any]) -> list[str]:
    s += "Q: "
    return s.map(questions, answer)


def met(count: int) -> sgl.Mock:
    """A model that answers when ``count`` calls wait for it."""
    together = threading.Barrier(count, timeout=20)

    def script(prompt: Any, params: Any) -> str:
        together.wait()
        return prompt.text[-1].upper()

    return sgl.Mock(script)


def test_items_run_side_by_side_and_are_joined() -> None:
    state = all_of.run(["a", {"question": "b"}, ("c", ".")], backend=met(3))
    assert state.ret_value == state["a"] == ["A", "B", "C"]
    assert state.text() == "Q: "


def test_programs_that_a_body_runs_are_side_by_side() -> None:
    @sgl.function
    def outer(s: Any) -> list[str]:
        return s.map(["a", "b", "c"], lambda s, q: answer.run(q).ret_value)

    assert outer.run(backend=met(3)).ret_value == ["A", "B", "C"]


def test_maps_nest() -> None:
    @sgl.function
    def outer(s: Any) -> list[list[str]]:
        return s.map([["a", "b"], ["c", "d"]], lambda s, some: s.map(some, answer))

    assert outer.run(backend=met(4)).ret_value == [["A", "B"], ["C", "D"]]


def test_few_threads_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgl.global_config, "max_threads", 2)
    state = all_of.run([str(i) for i in range(9)], backend=sgl.Mock(lambda p, _: p.text[-1]))
    assert state.ret_value == [str(i) for i in range(9)]


def test_an_event_loop_awaits_it() -> None:
    @sgl.function
    async def aanswer(s: Any, question: str) -> str:
        s += question + sgl.gen("a")
        return str(await s.aget("a"))

    @sgl.function
    async def aall(s: Any, program: Any) -> list[str]:
        return list(await s.amap(["a", "b"], program))

    @sgl.function
    async def blocked(s: Any) -> list[str]:
        return list(s.map(["a"], answer))

    async def main() -> list[Any]:
        mock = sgl.Mock(lambda p, _: p.text[-1].upper())
        states = [await aall.arun(one, backend=mock) for one in (aanswer, answer)]
        with pytest.raises(sgl.SglangError, match=r"use await s\.amap"):
            await blocked.arun(backend=mock)
        return [*states, await all_of.arun(["a", "b"], backend=mock)]

    assert [state.ret_value for state in asyncio.run(main())] == [["A", "B"]] * 3


def test_an_asynchronous_body_is_refused_where_nothing_awaits_it() -> None:
    @sgl.function
    async def aanswer(s: Any, question: str) -> None: ...

    @sgl.function
    def outer(s: Any) -> Any:
        return s.map(["a"], aanswer)

    with pytest.raises(sgl.SglangError, match=r"asynchronous; use await s\.amap"):
        outer.run(backend=sgl.Mock())


def test_an_error_of_a_body_ends_the_run() -> None:
    def body(s: Any, n: int) -> int:
        if n == 1:
            raise LookupError("one")
        return n

    @sgl.function
    def outer(s: Any) -> Any:
        return s.map([0, 1, 2], body)

    with pytest.raises(LookupError, match="one"):
        outer.run(backend=sgl.Mock())


def test_without_threads_and_items() -> None:
    @sgl.function
    def nothing(s: Any) -> Any:
        return s.map([], answer)

    assert nothing.run(backend=sgl.Mock()).ret_value == []
    mock = sgl.Mock(lambda p, _: p.text[-1])
    assert all_of.run(["a", "b"], backend=mock, use_thread=False).ret_value == ["a", "b"]


def test_it_is_compiled_and_explained() -> None:
    @sgl.function
    def three(s: Any, topic: str) -> Any:
        s += topic
        return s.map(["a", "b", "c"], answer)

    program = three.compile()
    assert program.run("On: ", backend=met(3)).ret_value == ["A", "B", "C"]
    assert len(three.explain("On: ", backend=sgl.Mock([])).requests) == 3


def test_bodies_in_threads_of_an_event_loop_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang.global_config.max_threads", 4)
    lock, together, running, peak = threading.Lock(), threading.Barrier(4, timeout=20), 0, 0

    def body(s: Any, number: int) -> int:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        together.wait()
        with lock:
            running -= 1
        return number

    @sgl.function
    async def outer(s: Any) -> list[int]:
        return await s.amap(list(range(40)), body)

    state = asyncio.run(outer.arun(backend=sgl.Mock("x")))
    assert state.ret_value == list(range(40))
    assert peak == 4
