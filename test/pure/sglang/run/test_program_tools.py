"""Tools of programs: functions whose text is appended, in threads, in event loops and in forks."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import sglang as sgl


def calc(text: str) -> int:
    left, right = text.split("*")
    return int(left) * int(right)


async def double(text: str) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"value": 2 * int(text)}


@sgl.function
def program(s, question):
    s += question + sgl.gen("call", stop=")") + "=" + sgl.tool("result", calc, of="call")
    s += sgl.gen("end")
    return s["result"]


@sgl.function
def one(s, function, of=None, timeout=None):
    s["x"] = "3*4"
    s += "a" + sgl.tool("result", function, of, timeout=timeout) + "b"
    return s["result"]


def mock() -> sgl.Mock:
    return sgl.Mock(["3*4)", " done"])


@pytest.mark.parametrize("use_thread", [True, False])
def test_a_tools_text_is_appended_and_kept(use_thread: bool) -> None:
    backend = mock()
    state = program.run("Q ", backend=backend, use_thread=use_thread)
    assert state.text() == "Q 3*4=12 done"
    assert state.ret_value == state["result"] == "12"
    assert state.get_meta_info("result")["tool"] == "calc"
    assert [call.prompt.text for call in backend.calls] == ["Q ", "Q 3*4=12"]
    assert state.usage.calls == 2, "a tool is no call of the model"


def test_a_tool_runs_in_an_event_loop() -> None:
    state = asyncio.run(program.arun("Q ", backend=mock()))
    assert state.text() == "Q 3*4=12 done"


@pytest.mark.parametrize(
    ("value", "text"),
    [("é", "é"), (None, ""), (1.5, "1.5"), ([1, "é"], '[1, "é"]'), (True, "true")],
)
def test_what_a_tool_returns_becomes_text(value: Any, text: str) -> None:
    assert one.run(lambda: value, backend=mock()).text() == f"a{text}b"


@pytest.mark.parametrize("use_thread", [True, False])
def test_an_asynchronous_tool_is_awaited(use_thread: bool) -> None:
    @sgl.function
    def doubled(s):
        s += sgl.gen("n") + sgl.tool("twice", double, of="n")

    def run() -> str:
        return doubled.run(backend=sgl.Mock(["4"]), use_thread=use_thread).text()

    async def run_in_a_loop() -> str:
        return run()

    assert run() == asyncio.run(run_in_a_loop()) == '4{"value": 8}'
    assert asyncio.run(doubled.arun(backend=sgl.Mock(["4"]))).text() == '4{"value": 8}'


def test_an_expression_is_appended_and_given() -> None:
    @sgl.function
    def expression(s):
        s += sgl.user("Q") + sgl.assistant_begin()
        s += sgl.tool("result", calc, of="7*" + sgl.gen("right")) + sgl.assistant_end()

    state = expression.run(backend=sgl.Mock(["6"]))
    assert state["result_argument"] == "7*6"
    assert state.messages()[-1]["content"] == "7*642"


def test_forks_run_their_tools_in_parallel() -> None:
    meeting = threading.Barrier(3, timeout=10)

    @sgl.function
    def forked(s):
        s += sgl.gen("call")
        forks = s.fork(3)
        forks += sgl.tool("result", lambda: meeting.wait() >= 0)
        forks.join()

    assert forked.run(backend=sgl.Mock(["x"]))["result"] == ["true"] * 3


def test_a_tool_does_not_hold_up_the_program() -> None:
    ready, reached = threading.Event(), []

    @sgl.function
    def ahead(s):
        s += sgl.tool("result", lambda: ready.wait(10))
        reached.append(not ready.is_set())
        ready.set()
        return s["result"]

    assert ahead.run(backend=mock()).ret_value == "true"
    assert reached == [True]


def test_a_batch_runs_tools_of_all_items() -> None:
    items = [{"question": str(n)} for n in range(8)]
    backend = sgl.Mock(lambda prompt, params: "2*3" if "=" not in prompt.text else ".")
    states = program.run_batch(items, backend=backend)
    assert [state.ret_value for state in states] == ["6"] * 8

    async def collect() -> list[str]:
        return [s.ret_value async for s in program.arun_batch(items, backend=backend)]

    assert asyncio.run(collect()) == ["6"] * 8


def test_tools_that_run_programs_need_no_free_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgl.global_config, "max_threads", 2)

    @sgl.function
    def inner(s):
        s += sgl.gen("x")
        return s["x"]

    @sgl.function
    def outer(s):
        forks = s.fork(6)
        forks += sgl.tool(
            "y", lambda: inner.run(backend=sgl.Mock(delay=0.01, script="z")).ret_value
        )
        forks.join()

    assert outer.run(backend=mock())["y"] == ["z"] * 6


def raising() -> None:
    raise KeyError("lost")


async def raising_async() -> None:
    raise KeyError("lost")


def exiting() -> None:
    raise SystemExit(3)


async def exiting_async() -> None:
    raise SystemExit(3)


async def interrupting_async() -> None:
    raise KeyboardInterrupt


def cancelling() -> None:
    raise asyncio.CancelledError


async def cancelling_async() -> None:
    raise asyncio.CancelledError


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Hidden:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def raising_mute() -> None:
    raise Mute


def not_a_number() -> list[float]:
    return [float("nan")]


def infinite() -> float:
    return float("inf")


def lasting() -> None:
    time.sleep(0.5)


async def lasting_async() -> None:
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (raising, {}, "tool 'raising' raised KeyError: 'lost' at "),
        (raising_async, {}, "tool 'raising_async' raised KeyError: 'lost' at "),
        (lasting, {"timeout": 0.05}, "tool 'lasting' took more than timeout=0.05 s at "),
        (
            lasting_async,
            {"timeout": 0.05},
            "tool 'lasting_async' took more than timeout=0.05 s at ",
        ),
        (object, {}, "tool 'object' returned <object object"),
        (Hidden, {}, "tool 'Hidden' returned Hidden, which JSON cannot carry"),
        (not_a_number, {}, "tool 'not_a_number' returned [nan], which JSON cannot carry"),
        (infinite, {}, "tool 'infinite' returned inf, which JSON cannot carry"),
        (exiting, {}, "tool 'exiting' raised SystemExit: 3 at "),
        (exiting, {"timeout": 5}, "tool 'exiting' raised SystemExit: 3 at "),
        (exiting_async, {}, "tool 'exiting_async' raised SystemExit: 3 at "),
        (interrupting_async, {}, "tool 'interrupting_async' raised KeyboardInterrupt at "),
        (cancelling, {}, "tool 'cancelling' raised CancelledError at "),
        (cancelling_async, {}, "tool 'cancelling_async' raised CancelledError at "),
        (raising_mute, {}, "tool 'raising_mute' raised Mute at "),
        (calc, {"of": "missing"}, "is given variable 'missing', which this state does not have"),
    ],
)
def test_a_failure_names_tool_and_line(function: Any, options: dict, said: str) -> None:
    async def awaited() -> None:
        await one.arun(function, backend=mock(), **options)

    runs = [
        lambda: one.run(function, backend=mock(), **options),
        lambda: one.run(function, backend=mock(), use_thread=False, **options),
        lambda: asyncio.run(awaited()),
    ]
    for run in runs:
        with pytest.raises(sgl.ProgramError) as caught:
            run()
        assert said in str(caught.value)
        assert caught.value.filename == __file__
        if "missing" not in said:
            assert isinstance(caught.value.__cause__, sgl.ToolError)


def interrupting() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_of_a_tools_thread_names_the_tool() -> None:
    async def awaited() -> None:
        await one.arun(interrupting, backend=mock())

    runs = [
        lambda: one.run(interrupting, backend=mock()),
        lambda: one.run(interrupting, backend=mock(), use_thread=False, timeout=5),
        lambda: asyncio.run(awaited()),
    ]
    for run in runs:
        with pytest.raises(sgl.ProgramError, match="tool 'interrupting' raised KeyboardInterrupt"):
            run()


def test_an_interrupt_of_the_main_thread_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        one.run(interrupting, backend=mock(), use_thread=False)


def test_a_cancelled_task_with_a_tool_stays_cancelled() -> None:
    ended: list[bool] = []

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    async def main() -> None:
        task = asyncio.create_task(one.arun(waits, backend=mock()))
        await asyncio.wait_for(begun.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)

    begun = asyncio.Event()
    asyncio.run(main())
    assert ended == [True]


def test_a_cancelled_run_does_not_wait_for_its_tool() -> None:
    begun, end = threading.Event(), threading.Event()

    def waiting() -> None:
        begun.set()
        end.wait(60)

    state = one.run(waiting, backend=mock(), stream=True)
    assert begun.wait(60)
    state.cancel()
    began = time.monotonic()
    assert state.error() is not None
    assert time.monotonic() - began < 50
    end.set()


def test_the_backend_is_told_before_a_tool_runs() -> None:
    class Hinted(sgl.Mock):
        def pause_hint(self, prompt, tool, expected_seconds) -> None:
            hints.append((prompt.text, tool, expected_seconds))

    @sgl.function
    def hinting(s):
        s += sgl.gen("call") + sgl.tool("result", calc, of="call", expected_seconds=2.5)

    hints: list[tuple] = []
    hinting.run(backend=Hinted(["3*4"]))
    assert hints == [("3*4", "calc", 2.5)]


def test_a_tool_is_refused_where_it_is_written() -> None:
    def yields():
        yield ""

    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: sgl.tool("", calc), TypeError, "name is ''"),
        (lambda: sgl.tool("x", "calc"), TypeError, "a tool is a function, not 'calc'"),  # type: ignore[arg-type]
        (lambda: sgl.tool("x", yields), TypeError, "'yields' yields"),
        (lambda: sgl.tool("x", calc), TypeError, "'calc' is called with no argument"),
        (lambda: sgl.tool("x", raising, of="y"), TypeError, "'raising' is called with one text"),
        (lambda: sgl.tool("x", calc, of="y", timeout=0), ValueError, "timeout is 0"),
        (lambda: sgl.tool("x", raising, timeout=float("inf")), ValueError, "timeout is inf; give"),
        (lambda: sgl.tool("x", raising, timeout=float("nan")), ValueError, "timeout is nan; give"),
        (lambda: sgl.tool("x", raising, timeout=10**400), ValueError, "timeout is 1000"),
        (lambda: sgl.tool("x", raising, timeout=10**5000), ValueError, "is a number that is too"),
        (lambda: sgl.tool("x", calc, of="y", expected_seconds="a"), ValueError, "expected_seconds"),  # type: ignore[arg-type]
        (lambda: sgl.tool("x", calc, of=3), TypeError, "cannot append int 3"),  # type: ignore[arg-type]
    ]
    for make, kind, said in refused:
        with pytest.raises(kind, match=said.replace("(", r"\(")):
            make()


def test_speculated_gens_before_a_tool_are_requested_first() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def speculative(s):
        s += sgl.user("Go.")
        with s.assistant():
            s += "A: " + sgl.gen("a", stop="\n") + "\nB: " + sgl.gen("b", stop="\n")
            s += "\nC: " + sgl.tool("c", calc, of="b") + " " + sgl.gen("d")

    replies = ["A: x\nB: 2*5\nC: 7", "A: x\nB: 2*5\nC: 10 end"]
    backend = sgl.Mock(replies, speculates="chat")
    state = speculative.run(backend=backend)
    assert state.messages()[-1]["content"] == "A: x\nB: 2*5\nC: 10 end"
