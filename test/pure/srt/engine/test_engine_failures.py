"""The engine over a fake worker: aborts, retraction, failures, refusals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import VOCAB, FakeWorker
from helpers.simulation import expected
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.device_errors import DeviceLost
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Control,
    Event,
    Failed,
    ForkContext,
    Open,
    Score,
    Truncate,
    Verb,
)
from sglang.srt.core.workers import NO_MASKS, Masks
from sglang.srt.engine.loop import serve

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def alone(prompt: list[int], goal: object) -> list[int]:
    return expected(prompt, goal.sampling).tokens  # type: ignore[attr-defined]


# -- aborts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("close", [False, True])
def test_an_abort_while_waiting_in_the_prompt_and_while_drawing(steps: int, close: bool) -> None:
    desk = Desk(chunked_prefill_size=6)
    context = desk.open(PROMPT)
    request = desk.advance(context, generate(9), close=close)
    other = desk.ask([*PROMPT, 1], generate(9))
    for _ in range(steps):
        desk.step()
    desk.send(Close(context))
    assert desk.done(request).reason == "abort"
    assert desk.done(request).stats.completion_tokens == len(desk.tokens(request))
    assert context not in desk.engine.store.contexts
    desk.run()
    assert desk.tokens(other) == alone([*PROMPT, 1], generate(9))
    desk.finish()


def test_an_abort_of_a_retracted_request() -> None:
    desk = Desk(capacity=40)
    desk.engine.planner.reserve.share = desk.engine.planner.reserve.low = 0.0
    old = desk.ask([1] * 10, generate(25))
    context = desk.open([2] * 10)
    young = desk.advance(context, generate(25))
    while not desk.engine.stats.retractions:
        desk.step()
    assert young in desk.engine.waiting
    desk.send(Close(context))
    assert desk.done(young).reason == "abort"
    assert desk.done(young).stats.completion_tokens > 0
    desk.run()
    assert desk.tokens(old) == alone([1] * 10, generate(25))
    desk.finish()


@pytest.mark.parametrize("page_size", [1, 4])
def test_retraction_leaves_texts_as_they_were(page_size: int) -> None:
    desk = Desk(capacity=64, page_size=page_size)
    desk.engine.planner.reserve.share = desk.engine.planner.reserve.low = 0.0
    goal = generate(30, temperature=1.0, seed=5, frequency_penalty=0.5, score_from=0)
    requests = [desk.ask([n] * 8, goal) for n in range(6)]
    desk.run()
    assert desk.engine.stats.retractions > 3
    for n, request in enumerate(requests):
        assert desk.tokens(request) == alone([n] * 8, goal)
        assert len(desk.prompt(request).logprobs) == 8
    desk.finish()


# -- failures ------------------------------------------------------------------------------------


def test_a_failing_pass_fails_its_rows_and_nobody_else() -> None:
    desk = Desk(worker=FakeWorker(1, fail_at={3}), max_running_requests=3)
    requests = [desk.ask([*PROMPT, n], generate(6)) for n in range(8)]
    desk.run()
    fates = [type(desk.end(request)).__name__ for request in requests]
    assert fates == ["Failed"] * 3 + ["Done"] * 5
    assert "forward pass failed: RuntimeError: injected" in desk.failed(requests[0]).message
    assert desk.failed(requests[0]).code == "internal"
    for n, request in enumerate(requests[3:], 3):
        assert desk.tokens(request) == alone([*PROMPT, n], generate(6))
    desk.finish()


class Faulty(FakeWorker):
    """A worker whose device is lost at a batch."""

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        if batch.id in self.fail_at:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return super().run(batch, masks)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_lost_device_fails_every_request(depth: int) -> None:
    desk = Desk(worker=Faulty(1, fail_at={3}), max_running_requests=3, depth=depth)
    requests = [desk.ask([*PROMPT, n], generate(6)) for n in range(8)]
    while not desk.engine.lost:
        desk.step()
    assert desk.engine.lost == "device-side assert triggered"
    codes = [desk.failed(request).code for request in requests]
    if depth < 3:
        assert codes == ["internal"] * 3 + ["lost"] * 5
    assert "internal" in codes[:3], "nobody is told of the pass that failed"
    assert set(codes[3:]) == {"lost"}
    failed, other = requests[codes.index("internal")], requests[-1]
    assert "forward pass failed: RuntimeError: CUDA error" in desk.failed(failed).message
    assert "the device was lost (device-side assert" in desk.failed(other).message
    assert not desk.engine.busy
    desk.finish()


def test_the_loop_ends_once_the_failures_are_sent() -> None:
    desk = Desk(worker=Faulty(1, fail_at={1}))
    request = desk.ask(PROMPT, generate(6))
    sent: list[Event] = []

    class Full:
        """A channel that takes nothing at first."""

        refused = 0

        def receive(self, seconds: float, limit: int) -> list[Verb]:
            return []

        def emit(self, events: Sequence[Event]) -> None:
            if self.refused < 3:
                self.refused += 1
                raise OSError("full")
            sent.extend(events)

    with pytest.raises(DeviceLost, match="device-side assert triggered"):
        serve(desk.engine, Full())
    (event,) = sent
    assert isinstance(event, Failed)
    assert event.request == request


def test_a_row_out_of_the_failing_pass_starts_over() -> None:
    """A prompt that gets no row in the failing pass keeps its order and its text."""
    desk = Desk(worker=FakeWorker(1, fail_at={3}), chunked_prefill_size=4)
    first = desk.ask([1] * 12, generate(4))
    second = desk.ask([2] * 12, generate(4))
    desk.run()
    assert desk.failed(first)
    assert desk.tokens(second) == alone([2] * 12, generate(4))
    desk.finish()


def test_a_failing_row_fails_alone() -> None:
    desk = Desk(worker=FakeWorker(1, break_at={2}))
    one, two = desk.ask(PROMPT, generate(5)), desk.ask([7, 7], generate(5))
    desk.run()
    assert desk.tokens(one) == alone(PROMPT, generate(5))
    assert desk.failed(two).message == "injected row error"
    desk.finish()


INVALID = [
    ([], generate(1), "empty"),
    ([5], generate(0), "max_new_tokens is 0"),
    ([VOCAB], generate(1), "outside the vocabulary"),
    ([-1], generate(1), "outside the vocabulary"),
    ([1] * 60, generate(10), "exceed the limit of 64"),
    ([1], generate(2, since=2), "since is 2; it must be an index into 1 tokens"),
    ([1], generate(2, since=-2), "since is -2"),
    ([1, 2], generate(4, since=1, generated=2), "generated is 2; it must be at most the 1 tokens"),
    ([1, 2, 3], generate(1, since=1, generated=2), "and of max_new_tokens, 1"),
    ([1, 2], generate(4, generated=-1), "generated is -1"),
    ([1], generate(2, top_p=0.0), "top_p"),
    ([1], generate(2, stop_regex=("(",)), "not a valid RE2 pattern"),
    ([1], generate(2, stop_token_ids=(VOCAB,)), "stop_token_ids"),
    ([1], Score(0, probe=(VOCAB,)), "outside the vocabulary"),
]


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize(("tokens", "goal", "message"), INVALID)
def test_what_cannot_be_met_is_refused(
    tokens: list[int], goal: object, message: str, close: bool
) -> None:
    desk = Desk(capacity=64)
    context = desk.open(tokens)
    request = desk.advance(context, goal, close=close)  # type: ignore[arg-type]
    assert desk.failed(request).code == "invalid"
    assert message in desk.failed(request).message
    assert (context in desk.engine.store.contexts) is not close
    assert not desk.engine.busy
    assert desk.engine.stats.rejected == 1
    desk.finish()


def test_the_limit_counts_whole_pages() -> None:
    """18 tokens of capacity are four pages of 4: a request of 17 would wait for ever."""
    desk = Desk(capacity=18, page_size=4)
    assert "limit of 16" in desk.failed(desk.ask([1] * 10, generate(7))).message
    fits = desk.ask([1] * 10, generate(6))
    desk.run()
    assert desk.done(fits).reason == "length"
    desk.finish()


def test_verbs_on_nothing() -> None:
    desk = Desk()
    request = desk.advance(77)
    assert (desk.failed(request).code, desk.failed(request).message) == ("invalid", "no context 77")
    context = desk.open(PROMPT)
    desk.send(
        ForkContext(77, 78), Append(77, b""), Truncate(77, 1), Truncate(context, -1),
        Open(context, b""), Open(79, b"abc"), ForkContext(context, context),
    )  # fmt: skip
    assert desk.engine.stats.bad_verbs == 7
    assert set(desk.engine.store.contexts) == {context}
    desk.finish()


def test_an_abort_that_crosses_the_end_is_no_fault() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    request = desk.advance(context, close=True)
    desk.run()
    desk.send(Close(context))  # sent before the client had read Done
    assert desk.done(request).reason == "length"
    assert desk.engine.stats.bad_verbs == 0
    desk.finish()


def test_a_busy_context_takes_no_other_verb() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    request = desk.advance(context)
    desk.step()
    second = desk.advance(context, close=True)
    assert "has an unfinished request" in desk.failed(second).message
    desk.send(Append(context, ints([1]).tobytes()), Truncate(context, 1))
    assert desk.engine.stats.bad_verbs == 2
    desk.run()
    assert desk.tokens(request) == alone(PROMPT, generate())
    assert context in desk.engine.store.contexts, "the refused request does not close it"
    desk.finish()


def test_a_number_in_use_names_no_second_request() -> None:
    desk = Desk()
    request = desk.ask(PROMPT)
    desk.send(Open(90, ints([1]).tobytes()), Advance(90, request, generate()))
    assert desk.engine.stats.bad_verbs == 1
    desk.run()
    assert desk.tokens(request) == alone(PROMPT, generate())
    desk.finish()


def test_the_queue_has_a_limit() -> None:
    desk = Desk(max_queued_requests=2)
    requests = [desk.ask([n]) for n in range(4)]
    assert [desk.failed(r).code for r in requests[2:]] == ["busy", "busy"]
    assert len(desk.engine.store.contexts) == 2, "the refused contexts are closed"
    desk.run()
    assert [desk.done(r).reason for r in requests[:2]] == ["length", "length"]
    desk.finish()


def test_controls() -> None:
    desk = Desk()
    desk.ask(PROMPT)
    desk.send(Control(1, "flush"), Control(2, "ping"), Control(3, "dance"))
    flush, ping, dance = desk.replies
    assert not flush.ok
    assert "1 requests are in flight" in flush.message
    assert ping.ok
    assert not dance.ok
    desk.run()
    desk.send(Control(4, "flush"), Control(5, "stats"))
    flush, stats = desk.replies[3:]
    assert flush.data == {"tokens": len(PROMPT) + 7}
    assert stats.data["free_tokens"] == stats.data["total_tokens"]
    assert stats.data["finished"] == 1
    desk.finish()
