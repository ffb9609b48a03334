"""History: the last calls, and how they are printed."""

from __future__ import annotations

import asyncio
import io

import pytest
import sglang as sgl
from sglang.run.history import HISTORY, KEPT


@pytest.fixture(autouse=True)
def empty():
    HISTORY.clear()


def printed(n: int = 1) -> str:
    file = io.StringIO()
    sgl.inspect_history(n, file)
    return file.getvalue()


@sgl.function
def program(s):
    s += "Q: " + sgl.gen("a", temperature=0, stop=".", n=2) + sgl.select("b", ["yes", "no"])


def test_a_call_is_printed_with_what_was_set_and_what_came_back() -> None:
    program.run(backend=sgl.Mock([["It is. Or", "so"], "no"], chat_template="default"))
    heading, *lines = printed(2).splitlines()
    assert heading.startswith("call 1 of 2: gen, mock, 0.")
    assert lines[:6] == [
        "Q: ",
        "with n=2, stop=('.',), temperature=0:",
        "It is",
        "tokens: prompt 2, cached 0, new 2; stop '.'",
        "so",
        "tokens: prompt 2, cached 2, new 1; stop",
    ]
    assert lines[7].startswith("call 2 of 2: select, mock, ")
    assert lines[8:12] == [
        "Q: It is",
        "by token_length_normalized:",
        "   -5.000  yes",
        "   -0.100  no  <- taken",
    ]
    assert printed(1).splitlines()[1:] == lines[8:]


def test_a_failure_is_printed_with_its_call() -> None:
    with pytest.raises(sgl.ProgramError):
        program.run(backend=sgl.Mock([ValueError("lost")]))
    assert "failed: ValueError: lost" in printed()


def test_a_call_in_flight_is_printed_too() -> None:
    seen = []

    def script(prompt, params):
        seen.append(printed())
        return ["x"] * params.n if params.n else "yes"

    program.run(backend=sgl.Mock(script))
    assert "not answered yet" in seen[0]


def test_calls_of_an_event_loop_and_streams_are_kept() -> None:
    @sgl.function
    async def chat(s):
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x"))
        await s.aget("x")

    async def streamed() -> None:
        state = await chat.arun(backend=sgl.Mock(["two words"]), stream=True)
        await state.adone()

    asyncio.run(chat.arun(backend=sgl.Mock(["one"])))
    asyncio.run(streamed())
    text = printed(2)
    assert "\none\n" in text
    assert "\ntwo words\n" in text
    assert text.count("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n") == 2


def test_there_are_as_many_as_asked_for_and_kept() -> None:
    assert printed(5) == "no calls yet\n"
    for _ in range(KEPT):
        program.run(backend=sgl.Mock(lambda p, params: ["x"] * params.n if params.n else "no"))
    assert printed(3).count("call ") == 3
    assert printed(KEPT * 9).count(f" of {KEPT}: ") == KEPT
    with pytest.raises(ValueError, match="n is 0"):
        sgl.inspect_history(0)
