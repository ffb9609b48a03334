"""The mock: what it can stand in for, and that an event loop needs no thread for it."""

from __future__ import annotations

import asyncio

import pytest
import sglang as sgl
from helpers.threads import running_threads
from sglang.ir.params import strings


def test_calls_show_their_media() -> None:
    @sgl.function
    def program(s):
        s += sgl.image(b"one") + sgl.gen("x") + sgl.video(b"two", 4) + sgl.select("y", ["x"])

    mock = sgl.Mock(lambda prompt, params: "x")
    program.run(backend=mock)
    assert [[medium.data for medium in call.media] for call in mock.calls] == [
        [b"one"], [b"one", b"two"]
    ]  # fmt: skip


@pytest.mark.parametrize(("constraints", "sent"), [((), None), (("regex",), "[0-9]+")])
def test_it_enforces_what_it_is_said_to(constraints: tuple, sent: str | None) -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x", regex="[0-9]+")

    mock = sgl.Mock(["5"], constraints=constraints)
    program.run(backend=mock)
    params = mock.calls[0].params
    assert params is not None
    assert params.regex == sent


def test_a_completion_that_runs_on_is_cut_and_reused() -> None:
    @sgl.function(num_api_spec_tokens=5)
    def program(s):
        s += "Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")

    mock = sgl.Mock([" Ada\nJob: poet\nAge: 36\nBorn: here", " poet\n"], speculates="text")
    state = program.run(backend=mock, max_new_tokens=4)
    assert (state["name"], state["job"]) == (" Ada", " poet")
    (call,) = mock.calls
    assert call.params is not None
    assert (call.params.max_new_tokens, strings(call.params.stop)) == (5, ("<|im_end|>",))
    assert state.speculation.saved_calls == 1


def test_an_event_loop_needs_no_thread_and_waits_meanwhile() -> None:
    started, most = running_threads(), 0

    def script(prompt, params):
        nonlocal most
        most = max(most, running_threads())
        return "a b"

    @sgl.function
    async def program(s, kind):
        forks = s.fork(20)
        forks += lambda i: f"{i} " + (sgl.select("x", ["a b"]) if kind else sgl.gen("x"))
        await forks.ajoin()

    async def both() -> int:
        mock, ticks = sgl.Mock(script, delay=0.25), 0
        runs = asyncio.gather(*(program.arun(kind, backend=mock) for kind in (0, 1)))
        while not runs.done():
            await asyncio.sleep(0)
            ticks += not mock.calls
        streamed = await program.arun(0, backend=mock, stream=True)
        await streamed.adone()
        assert len(mock.calls) == 60
        return ticks

    assert asyncio.run(both()) > 10
    assert most <= started
