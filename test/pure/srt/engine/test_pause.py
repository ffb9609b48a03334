"""An engine that is paused computes nothing, takes requests, and goes on where it was."""

from __future__ import annotations

import itertools

import pytest
from helpers.desk import Desk, generate
from helpers.simulation import expected
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.core.messages import Close, Control, Done

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
_numbers = itertools.count(1)


def tell(desk: Desk, op: str) -> None:
    desk.send(Control(next(_numbers), op))
    assert desk.replies[-1].ok, desk.replies[-1].message


def whole(prompt: list[int], most: int) -> list[int]:
    return expected(prompt, generate(most).sampling).tokens


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("op", ["pause", "retract"])
def test_a_pause_stops_the_passes(op: str, depth: int) -> None:
    desk = Desk(depth=depth)
    begun = desk.ask(PROMPT, generate(12))
    for _ in range(5):
        desk.step()
    tell(desk, op)
    desk.run()  # passes in flight
    passes, drawn = desk.engine.stats.passes, len(desk.tokens(begun))
    assert 0 < drawn < 12
    late = desk.ask([7, 7], generate(3))
    assert not desk.engine.busy
    desk.step()
    assert desk.engine.stats.passes == passes
    assert desk.engine.stats_now()["paused"] == 1
    tell(desk, "continue")
    desk.run()
    assert desk.tokens(begun) == whole(PROMPT, 12)
    assert desk.tokens(late) == whole([7, 7], 3)
    assert desk.engine.stats_now()["paused"] == 0
    desk.finish()


def test_a_retracted_request_gives_its_memory_back() -> None:
    desk = Desk()
    request = desk.ask(PROMPT, generate(12))
    for _ in range(5):
        desk.step()
    tell(desk, "pause")
    desk.send(Control(0, "flush"))
    assert "1 requests are in flight" in desk.replies[-1].message
    tell(desk, "retract")
    tell(desk, "flush")
    store = desk.engine.store
    assert store.pool.free == store.pool.size
    tell(desk, "continue")
    desk.run()
    assert desk.tokens(request) == whole(PROMPT, 12)
    assert desk.done(request).stats.retractions == 1
    desk.finish()


def test_a_paused_request_can_be_aborted() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    request = desk.advance(context, generate(12))
    desk.step()
    tell(desk, "pause")
    desk.run()
    desk.send(Close(context))
    assert desk.done(request).reason == "abort"
    desk.finish()


def test_an_unknown_control_is_refused() -> None:
    desk = Desk()
    desk.send(Control(1, "stop"))
    assert desk.replies[-1].message.endswith(
        "use stats, flush, ping, tree, pause, retract, continue"
    )


def test_retract_in_flight_samples_no_token_twice() -> None:
    desk = Desk(depth=2)
    request = desk.ask([3, 1, 4, 1], generate(9))
    desk.step()
    desk.send(Control(0, "retract"))
    desk.send(Control(0, "continue"))
    desk.run()
    assert desk.tokens(request) == whole([3, 1, 4, 1], 9)
    desk.finish()


OPS = ["ask", "step", "step", "step", "pause", "retract", "flush", "continue", "end"]
STEPS = st.lists(st.sampled_from(OPS), max_size=60)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(steps=STEPS, depth=st.sampled_from([1, 2, 4]), capacity=st.sampled_from([48, 4096]))
def test_any_history_with_pauses_writes_the_same(
    steps: list[str], depth: int, capacity: int
) -> None:
    desk, open_, ended = Desk(capacity, depth=depth), dict[int, list[int]](), set[int]()
    contexts: dict[int, int] = {}
    for number, step in enumerate(steps):
        passes = desk.engine.stats.passes
        if step == "ask":
            prompt = [3, 1, 4, number % 5 + 1]
            context = desk.open(prompt)
            request = desk.advance(context, generate(9), close=True)
            open_[request], contexts[request] = prompt, context
        elif step == "step":
            under_way = len(desk.engine._in_flight)
            desk.step()
            if desk.engine.paused:
                assert desk.engine.stats.passes - passes <= under_way
        elif step == "end":
            for request in list(open_)[:1]:
                desk.send(Close(contexts[request]))
                ended.add(request)
        else:
            desk.send(Control(number, step))
        desk.engine.store.check()
    desk.send(Control(0, "continue"))
    desk.run()
    for request, prompt in open_.items():
        done = desk.end(request)
        assert isinstance(done, Done)
        if done.reason == "abort":
            assert request in ended
            assert desk.tokens(request) == whole(prompt, 9)[: len(desk.tokens(request))]
        else:
            assert desk.tokens(request) == whole(prompt, 9)
    desk.finish()
