"""Streaming: pieces as they come, in threads and in an event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TypedDict

import pytest
import sglang as sgl
from helpers.threads import running_threads
from sglang.backend.base import Completion


@sgl.function
def poem(s):
    s += "Title: " + sgl.gen("title") + "\n"
    s += sgl.gen("body")


def replies() -> sgl.Mock:
    return sgl.Mock(["Two words", "some more words follow"])


def test_the_text_comes_in_pieces_and_is_whole() -> None:
    state = poem.run(backend=replies(), stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() == "Title: Two words\nsome more words follow"


def test_a_piece_comes_before_the_rest_is_there() -> None:
    seen = threading.Event()

    class Slow(sgl.Mock):
        def stream(self, prompt, params):
            yield Completion("first", {})
            assert seen.wait(60)
            yield Completion("first second", {})

    state = poem.run(backend=Slow(), stream=True)
    pieces = state.text_iter("title")
    assert next(pieces) == "first"
    seen.set()
    assert "".join(pieces) == " second"


def test_one_variable_alone_and_the_rest_afterwards() -> None:
    state = poem.run(backend=replies(), stream=True)
    assert "".join(state.text_iter("body")) == "some more words follow"
    assert "".join(state.text_iter("title")) == "Two words"
    assert state.get_meta_info("title")["finish_reason"] == {"type": "stop", "matched": None}


def test_reading_from_outside_waits_for_a_variable_not_yet_set() -> None:
    begin = threading.Event()

    @sgl.function
    def program(s):
        assert begin.wait(60)
        s += sgl.gen("x")

    state = program.run(backend=sgl.Mock(["y"]), stream=True)
    threading.Timer(0.05, begin.set).start()
    assert state["x"] == "y"


def test_iterating_without_streaming_gives_the_text() -> None:
    state = poem.run(backend=replies())
    assert list(state.text_iter()) == ["Title: Two words\nsome more words follow"]
    assert list(state.text_iter("title")) == ["Two words"]


def test_forks_and_selects_stream_too() -> None:
    @sgl.function
    def program(s):
        s += "a "
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join()
        s += sgl.select("y", ["p", "q"]) + s["x"][0] + s["x"][1]

    state = program.run(
        backend=sgl.Mock(lambda p, _: "q" if "=" in p.text else p.text and "p"), stream=True
    )
    assert "".join(state.text_iter()) == "a ppp"


def test_errors_reach_the_reader() -> None:
    @sgl.function
    def backend_fails(s):
        s += "a" + sgl.gen("x") + sgl.gen("y")  # here

    @sgl.function
    def program_fails(s):
        s += "a" + sgl.gen("x")
        s["x"]
        raise ZeroDivisionError("mine")

    state = backend_fails.run(backend=sgl.Mock(["b", OSError("cut")]), stream=True)
    with pytest.raises(sgl.ProgramError, match=r"cut at .*test_stream.py:\d+$"):
        list(state.text_iter())
    assert list(state.text_iter("x")) == ["b"]
    with pytest.raises(sgl.ProgramError, match="cut"):
        list(state.text_iter("y"))

    state = program_fails.run(backend=sgl.Mock(["b"]), stream=True)
    with pytest.raises(ZeroDivisionError):
        list(state.text_iter())
    assert isinstance(state.error(), ZeroDivisionError)

    state = poem.run(backend=replies(), stream=True)
    with pytest.raises(KeyError, match="made no variable 'bodi'"):
        list(state.text_iter("bodi"))


@pytest.mark.parametrize("early", [True, False], ids=["while it runs", "at its end"])
def test_the_result_is_what_the_program_returned_or_raised(early) -> None:
    read = threading.Event()

    @sgl.function
    def program(s, caught):
        s += sgl.gen("lost")
        try:
            s["lost"]
        except sgl.ProgramError:
            assert read.wait(60)
            if caught:
                return "went on"
            raise ValueError("its own") from None

    for caught in (True, False):
        read.clear()
        state = program.run(caught, backend=sgl.Mock([OSError("gone")]), stream=True)
        with pytest.raises(sgl.ProgramError, match="gone"):
            state.text()
        if early:
            threading.Timer(0.05, read.set).start()
        else:
            read.set()
            for thread in threading.enumerate():
                if thread.name == "sglang-program":
                    thread.join(60)
        if caught:
            assert state.ret_value == "went on"
        else:
            with pytest.raises(ValueError, match="its own"):
                state.ret_value  # noqa: B018


@pytest.mark.parametrize("read", [sgl.ProgramState.text, sgl.ProgramState.error])
def test_a_failure_that_the_reader_alone_has_seen_is_raised(read) -> None:
    told = threading.Event()

    @sgl.function
    def program(s):
        s += sgl.gen("lost")
        assert told.wait(60)
        return "without a look"

    state = program.run(backend=sgl.Mock([OSError("gone")]), stream=True)
    with suppress(sgl.ProgramError):
        read(state)
    told.set()
    with pytest.raises(sgl.ProgramError, match="gone"):
        state.ret_value  # noqa: B018


def test_a_value_is_typed_while_it_grows() -> None:
    seen = threading.Event()

    class Person(TypedDict):
        name: str
        age: int

    class Slow(sgl.Mock):
        def stream(self, prompt, params):
            yield Completion('{"name": "No', {})
            assert seen.wait(60)
            yield Completion('{"name": "Nora", "age": 34}', {})

    @sgl.function
    def program(s):
        s += sgl.gen("person", schema=Person)

    state = program.run(backend=Slow(constraints=["json_schema"]), stream=True)
    values = state.value_iter("person")
    assert next(values) == {"name": "No"}
    seen.set()
    assert list(values) == [{"name": "Nora", "age": 34}]


def test_a_running_event_loop_reads_without_a_thread() -> None:
    async def read() -> tuple[str, list]:
        state = poem.run(backend=replies(), stream=True)
        other = poem.run(backend=replies(), stream=True)

        async def meta() -> list:
            return [item async for item in other.text_async_iter("title", return_meta_data=True)]

        async def text() -> str:
            return "".join([piece async for piece in state.text_async_iter()])

        before = running_threads()
        result = await asyncio.gather(text(), meta())
        assert running_threads() <= before + 4
        return result

    text, items = asyncio.run(read())
    assert text == "Title: Two words\nsome more words follow"
    assert "".join(piece for piece, _ in items) == "Two words"
    assert items[-1][1]["completion_tokens"] == 2


def test_async_errors_and_misuse() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x")

    async def read(**arguments) -> None:
        state = program.run(backend=sgl.Mock([OSError("cut")]), stream=True)
        async for _ in state.text_async_iter(**arguments):
            pass

    with pytest.raises(sgl.ProgramError, match="cut"):
        asyncio.run(read())
    with pytest.raises(ValueError, match="needs var_name"):
        asyncio.run(read(return_meta_data=True))
