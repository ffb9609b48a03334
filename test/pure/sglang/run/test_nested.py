"""Inheritance of a program from its caller: context, backend, cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
import sglang as sgl
from sglang.backend.base import Backend, Completion
from sglang.errors import Cancelled

WHO = contextvars.ContextVar("who", default="nobody")


def test_the_callers_context_is_the_programs() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "x" + sgl.gen("y")
        return WHO.get()

    def all_ways() -> list[Any]:
        WHO.set("request 7")
        streamed = program.run(backend=mock, stream=True)
        streamed.text()
        awaited = asyncio.run(program.arun(backend=mock))
        (batched,) = program.run_batch([{}], backend=mock)
        plain = program.run(backend=mock)
        return [state.ret_value for state in (plain, streamed, awaited, batched)]

    mock = sgl.Mock(lambda prompt, params: "z")
    assert contextvars.copy_context().run(all_ways) == ["request 7"] * 4


def test_a_program_inside_another_uses_its_backend() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        s += sgl.gen("y")

    @sgl.function
    def outer(s: Any) -> Any:
        return inner.run()["y"], [state["y"] for state in inner.run_batch([{}, {}])]

    sgl.set_default_backend(sgl.Mock(lambda prompt, params: "default"))
    try:
        state = outer.run(backend=sgl.Mock(lambda prompt, params: "outer's"))
        assert state.ret_value == ("outer's", ["outer's"] * 2)
        assert inner.run()["y"] == "default"
    finally:
        sgl.set_default_backend(None)


def test_a_program_in_a_tool_uses_the_backend_and_the_context() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        s += sgl.gen("y")

    def tool() -> str:
        return f"{inner.run()['y']} for {WHO.get()}"

    @sgl.function
    def outer(s: Any) -> Any:
        with s.fork(2) as forks:
            forks[0] += sgl.gen("z")
            forks += sgl.tool("x", tool)
        s += sgl.gen("z") + sgl.tool("end", tool)
        return [*s["x"], s["end"]]

    def all_ways() -> list[Any]:
        WHO.set("request 7")
        mock = sgl.Mock(lambda prompt, params: "outer's")
        awaited = asyncio.run(outer.arun(backend=mock))
        plain, inline = outer.run(backend=mock), outer.run(backend=mock, use_thread=False)
        return [state.ret_value for state in (plain, inline, awaited)]

    want = ["outer's for request 7"] * 3
    assert contextvars.copy_context().run(all_ways) == [want] * 3


class Slow(Backend):
    """Never answers; a call is over when it is cancelled."""

    name = "slow"

    def __init__(self) -> None:
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def acomplete(self, prompt: Any, params: Any) -> list[Completion]:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return []

    def complete(self, prompt: Any, params: Any) -> list[Completion]:
        from sglang.backend.cancel import aborted_by

        self.begun.set()
        with aborted_by(self.cancelled.set):
            assert self.cancelled.wait(60)
        raise RuntimeError("aborted")


def test_cancelling_a_program_ends_those_inside_it() -> None:
    slow = Slow()

    @sgl.function
    def inner(s: Any) -> None:
        s += "x" + sgl.gen("y")

    @sgl.function
    def outer(s: Any) -> None:
        inner.run()

    async def main() -> None:
        task = asyncio.create_task(outer.arun(backend=slow))
        await asyncio.to_thread(slow.begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert slow.cancelled.wait(60)


def test_a_program_begun_inside_a_cancelled_one_calls_nothing() -> None:
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    @sgl.function
    def inner(s: Any) -> None:
        s += "x" + sgl.gen("y")

    @sgl.function
    def outer(s: Any) -> None:
        try:
            begun.set()
            assert cancelled.wait(60)
            inner.run()
        finally:
            ended.set()

    mock = sgl.Mock(lambda prompt, params: "z")
    state = outer.run(backend=mock, stream=True)
    assert begun.wait(60)
    state.cancel()
    cancelled.set()
    assert ended.wait(60)
    assert mock.calls == []
    assert isinstance(state.error(), Cancelled)


def test_a_variable_made_again_is_a_new_one() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x", dtype=int)
        first = s.value("x")
        s += sgl.gen("x")
        with s.var_scope("y"):
            s += "text" + sgl.gen("y")
        s.set_var("z", first)

    state = program.run(backend=sgl.Mock(["42", "words", "more"]))
    assert state.value("x") == "words"
    assert state.value("y") == "textmore"
    assert state.get_meta_info("y") == {}
    assert state["z"] == 42


class Cut(sgl.Mock):
    """A stream that fails in the middle."""

    def stream(self, prompt: Any, params: Any) -> Any:
        yield Completion("half a ")
        raise ValueError("gone")


def test_what_was_streamed_before_a_failure_is_shown() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "Say: " + sgl.gen("x")

    state = program.run(backend=Cut(), stream=True)
    state.sync()
    pieces: list[str] = []
    with pytest.raises(sgl.ProgramError, match="gone"):
        pieces.extend(state.text_iter("x"))
    assert pieces == ["half a "]


def test_reasoning_is_not_streamed_as_an_answer() -> None:
    class Letters(sgl.Mock):
        def stream(self, prompt: Any, params: Any) -> Any:
            text = "<think>hm</think>Paris is nice"
            for end in range(1, len(text) + 1):
                yield Completion(text[:end])

    @sgl.function
    def program(s: Any) -> None:
        s += "Q" + sgl.separate_reasoning(sgl.gen("x"), "qwen3")

    state = program.run(backend=Letters(), stream=True)
    assert "".join(state.text_iter("x")) == state["x"] == "Paris is nice"
    assert state["x_reasoning_content"] == "hm"
    assert state.text() == "QParis is nice"


def test_a_streamed_program_can_be_cancelled_and_awaited() -> None:
    @sgl.function
    def program(s: Any) -> str:
        s += "x" + sgl.gen("y")
        return s["y"] + "!"

    state = program.run(backend=sgl.Mock("z", delay=0.05), stream=True)
    assert state.ret_value == "z!"

    slow = Slow()
    slow.stream = lambda prompt, params: iter(slow.complete(prompt, params))  # type: ignore
    with program.run(backend=slow, stream=True) as state:
        assert slow.begun.wait(60)
    assert slow.cancelled.wait(60)
    with pytest.raises(sgl.SglangError):
        state.text()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: sgl.gen("x", -1), "max_tokens is -1; it must be a whole number of at least 0"),
        (lambda: sgl.gen("x", 2.5), "max_tokens is 2.5"),  # type: ignore[arg-type]
        (lambda: sgl.gen("x", temperature="hot"), "temperature is 'hot'"),  # type: ignore[arg-type]
        (lambda: sgl.gen("x", top_p=2), "top_p is 2; it must be a number above 0 and at most 1"),
        (lambda: sgl.gen("x", top_k=0), "top_k is 0"),
        (lambda: sgl.gen("x", n=0), "n is 0"),
        (lambda: sgl.gen("x", stop=3), "stop is 3; give a text"),  # type: ignore[arg-type]
        (lambda: sgl.gen("x", stop_token_ids=5), "stop_token_ids is 5"),  # type: ignore[arg-type]
        (lambda: sgl.gen("x", max_retries=-1), "max_retries is -1"),
        (lambda: sgl.function(lambda s: None, num_api_spec_tokens="64"), "'64'"),  # type: ignore[call-overload]
        (lambda: sgl.function(lambda s: None).run(temperature=-1, backend=sgl.Mock()), "is -1"),
        (lambda: f"A: {sgl.gen('a')}", "append it: s"),
        (lambda: str(sgl.gen("a")), "append it: s"),
        (lambda: sgl.image(b"x").__add__(sgl.function(lambda s: None)), "with the state"),
        (lambda: "a" + sgl.gen("x") + ("b", "c"), "a comma stands where"),
        (lambda: setattr(sgl.global_config, "max_thread", 3), "max_threads"),
        (lambda: setattr(sgl.global_config, "max_threads", 0), "at least 1"),
        (lambda: sgl.image("data:text/plain;base64,aGk="), "of type text/plain"),
        (lambda: sgl.set_default_backend(sgl.Mock), "make one of it"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(make: Any, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=complaint):
        make()


def test_a_program_that_yields_is_refused() -> None:
    with pytest.raises(ValueError, match="yields"):

        @sgl.function
        def program(s: Any) -> Any:
            yield sgl.gen("x")


def test_an_invalid_output_is_caught_as_one() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("age", dtype=int)

    complaint = r"the last of 2 answers, 'bad', is not valid.*test_nested.py:\d+$"
    with pytest.raises(sgl.InvalidOutput, match=complaint) as raised:
        program.run(backend=sgl.Mock("bad"), max_retries=1)
    assert isinstance(raised.value, sgl.ProgramError)
    assert raised.value.text == "bad"
