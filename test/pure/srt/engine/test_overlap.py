"""Two passes in flight: the same texts and, if nothing unforeseen happens, the same passes as with
one; threads; failures, aborts and ends in between."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import EOS, TOKEN_BYTES, VOCAB, Corrupt, FakeWorker, fake_info
from helpers.mutation import Mutation, always, become, drop, mutate, never
from helpers.simulation import expected
from helpers.toy_grammar import ToyGrammars
from hypothesis import given
from hypothesis import strategies as st
from sglang.ir.constraint import Constraint
from sglang.srt.config import Config, ScheduleConfig
from sglang.srt.config.sections import POLICIES
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Close,
    Control,
    Distribution,
    Done,
    Embed,
    Failed,
    Fill,
    ForkContext,
    Generate,
    Goal,
    Open,
    PromptChunk,
    PromptProgress,
    Score,
    Tokens,
)
from sglang.srt.core.request import Request
from sglang.srt.core.workers import NO_MASKS, Masks
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Threaded, overlaps
from sglang.srt.engine.planner import Planner

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class Recorder(FakeWorker):
    """Keeps a record of each row that it got."""

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        self.told = [*getattr(self, "told", []), [
            (row.context, row.start, len(row.tokens), list(row.pages)) for row in batch.rows
        ]]  # fmt: skip
        return super().run(batch, masks)


def text_of(prompt: list[int], goal: Generate) -> list[int]:
    return expected(prompt, goal.sampling).tokens


def some_goal(r: random.Random, prompt: list[int]) -> Any:
    kind = r.random()
    if kind < 0.1:
        return Score(r.randrange(len(prompt) + 1))
    if kind < 0.2:
        return r.choice([Fill(), Distribution(top=1), Embed("mean"), Embed("last")])
    settings: dict[str, Any] = {
        "temperature": r.choice([0.0, 1.0]), "seed": r.randrange(99),
        "frequency_penalty": r.choice([0.0, 0.5]), "repetition_penalty": r.choice([1.0, 1.5]),
        "min_new_tokens": r.choice([0, 1]), "speculation": "off",
    }  # fmt: skip
    if r.random() < 0.2:
        settings["constraint"] = Constraint("regex", str(r.randrange(99)))
    return generate(r.randint(1, 12), top=r.choice([-1, 1]), **settings)


# -- the same ------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.integers(0, 1 << 30))
def test_without_surprises_the_passes_are_the_same(seed: int) -> None:
    """Requests that end by length, at one time: every row of every pass, and every event."""
    runs = []
    for depth in (1, 2):
        r = random.Random(seed)
        page_size = r.choice([1, 2, 4])
        worker = Recorder(page_size)
        desk = Desk(
            r.randint(40, 120), page_size, worker=worker, depth=depth,
            chunked_prefill_size=r.choice([1, 3, 8, -1]), max_running_requests=r.choice([1, 3, 8]),
            schedule_policy=r.choice(POLICIES),
        )  # fmt: skip
        desk.engine.planner.reserve.share = desk.engine.planner.reserve.low = r.choice([0.0, 0.3])
        for _ in range(r.randint(1, 9)):
            prompt = [r.randrange(3) for _ in range(r.randint(1, 9))]
            goal = some_goal(r, prompt)
            if isinstance(goal, Generate) and goal.sampling.constraint:
                goal = generate(5, speculation="off")
            desk.ask(prompt, goal)
        desk.run()
        runs.append((worker.told, {number: list(e) for number, e in desk.events.items()}))
        desk.finish()
    assert runs[0] == runs[1]


def test_rows_follow_and_no_token_is_computed_in_vain() -> None:
    desk = Desk(depth=2)
    goal = generate(20, frequency_penalty=0.5, repetition_penalty=1.5)
    requests = [desk.ask([*PROMPT, n], goal) for n in range(4)]
    desk.run()
    assert [desk.tokens(q) for q in requests] == [text_of([*PROMPT, n], goal) for n in range(4)]
    assert desk.worker.followed == 4 * 19
    assert desk.worker.tokens == len(PROMPT) + 4 + 4 * 19
    desk.finish()


def test_a_mask_waits_for_the_token_before() -> None:
    """All requests wait then, so that none loses every other pass to the others."""
    desk = Desk(depth=2, grammars=ToyGrammars(0), jumps="off")
    bound = generate(9, constraint=Constraint("regex", "5"), ignore_eos=False)
    one, other = desk.ask(PROMPT, bound), desk.ask([1], generate(9, speculation="off"))
    while desk.engine.busy or desk.engine.compiling:
        desk.engine._compiling._grammars.pass_time()  # type: ignore[union-attr]
        desk.send()
        desk.step()
    assert desk.tokens(one) == text_of(PROMPT, bound)
    assert desk.tokens(other) == text_of([1], generate(9))
    desk.finish()


# -- ends during a pass --------------------------------------------------------------------------


def long_text(least: int) -> tuple[list[int], list[int]]:
    """A prompt whose greedy text meets an end token after more than ``least``, and the text."""
    for n in range(10_000):
        text = text_of([n % VOCAB, n // VOCAB], generate(40, ignore_eos=False))
        if least < len(text) < 40:
            assert text[-1] == EOS
            return [n % VOCAB, n // VOCAB], text
    raise AssertionError("no such text")


@pytest.mark.parametrize("page_size", [1, 4])
def test_an_end_token_costs_one_row_in_vain(page_size: int) -> None:
    prompt, text = long_text(5)
    desk = Desk(page_size=page_size, depth=2)
    request = desk.ask(prompt, generate(40, ignore_eos=False))
    desk.run()
    assert desk.tokens(request) == text
    assert desk.done(request).stats.forward_passes == len(text)
    assert desk.worker.tokens == len(prompt) + len(text)
    desk.finish()


def test_a_context_continues_with_its_last_request_in_flight() -> None:
    prompt, text = long_text(5)
    desk = Desk(depth=2)
    context = desk.open(prompt)
    first = desk.advance(context, generate(40, ignore_eos=False))
    while first not in desk.events or len(desk.tokens(first)) < len(text):
        desk.step()
    assert desk.engine._in_flight, "the row in vain"
    second = desk.advance(context, generate(6))
    desk.run()
    assert desk.tokens(second) == text_of([*prompt, *text], generate(6))
    desk.finish()


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("page_size", [1, 2])
def test_aborts_and_forks_with_passes_under_way(steps: int, page_size: int) -> None:
    desk = Desk(64, page_size, depth=2, chunked_prefill_size=6)
    context = desk.open(PROMPT)
    request = desk.advance(context, generate(9))
    other = desk.ask([*PROMPT, 1], generate(9))
    for _ in range(steps):
        desk.step()
    drawn = desk.tokens(request)
    desk.send(ForkContext(context, 900), Close(context))
    assert desk.done(request).reason == "abort"
    desk.send(Control(1, "flush"))
    assert not desk.replies[0].ok
    child = desk.advance(900, generate(5), close=True)
    desk.run()
    assert desk.tokens(other) == text_of([*PROMPT, 1], generate(9))
    assert desk.tokens(child) == text_of([*PROMPT, *drawn], generate(5))
    desk.finish()


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("failing", range(1, 9))
def test_the_pass_after_a_failed_one_counts_for_nothing(failing: int, depth: int) -> None:
    """A request with a row only in the second pass starts over, with the scores and sums it had."""
    desk = Desk(worker=FakeWorker(1, fail_at={failing}), depth=depth, chunked_prefill_size=5)
    goals: list[Goal] = [Score(0), Embed("mean"), generate(4, top=1, score_from=0), generate(9)]
    prompts = [[n] * 9 for n in range(len(goals))]
    requests = [desk.ask(prompt, goal) for prompt, goal in zip(prompts, goals)]
    desk.run()
    ends = [desk.end(request) for request in requests]
    assert any(isinstance(end, Failed) for end in ends)
    assert not all(isinstance(end, Failed) for end in ends)
    again = Desk()
    for prompt, goal, request, end in zip(prompts, goals, requests, ends):
        if not isinstance(end, Failed):
            alone = again.ask(prompt, goal)
            again.run()
            assert desk.tokens(request) == again.tokens(alone)
            assert getattr(end, "embedding", b"") == getattr(again.done(alone), "embedding", b"")
            if isinstance(goal, Score) or getattr(goal, "score_from", -1) == 0:
                assert desk.prompt(request).logprobs == again.prompt(alone).logprobs
    desk.finish()


def all_failures() -> None:
    for failing in range(1, 9):
        test_the_pass_after_a_failed_one_counts_for_nothing(failing, 2)


# -- threads -------------------------------------------------------------------------------------


class Slow(FakeWorker):
    """Takes some time, and tells which thread it runs in."""

    def __init__(self) -> None:
        super().__init__(1, fail_at={50})
        self.threads: set[str] = set()
        self.failed = False

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        self.threads.add(threading.current_thread().name)
        time.sleep(random.random() * 0.002)
        failed, self.failed = self.failed, True
        try:
            result = super().run(batch, masks)
        except Corrupt:
            assert failed, "only what comes right after a failed pass may read nonsense"
            raise RuntimeError("in vain") from None
        self.failed = False
        return result


@pytest.fixture
def threaded() -> Iterator[Threaded]:
    executor = Threaded(Slow())
    yield executor
    executor.close()
    assert not executor._thread.is_alive()


def test_a_thread_of_its_own(threaded: Threaded) -> None:
    r = random.Random(1)
    engine = EngineCore(
        threaded, fake_info(80, 1), ScheduleConfig(max_running_requests=4), TOKEN_BYTES
    )
    texts: dict[int, list[int]] = {}
    failed: set[int] = set()
    asked: dict[int, tuple[list[int], Generate]] = {}
    for number in range(40):
        prompt = [r.randrange(VOCAB) for _ in range(r.randint(1, 8))]
        goal = generate(r.randint(1, 9), frequency_penalty=r.choice([0.0, 0.5]), ignore_eos=False)
        asked[number] = prompt, goal
        opening = Open(number, ints(prompt).tobytes())
        assert not engine.handle([opening, Advance(number, number, goal, close=True)])
    while engine.busy:
        for event in engine.step():
            assert isinstance(event, (Tokens, PromptChunk, PromptProgress, Done, Failed)), event
            texts.setdefault(event.request, []).extend(getattr(event, "tokens", ()))
            if isinstance(event, Failed):
                failed.add(event.request)
    assert 0 < len(failed) <= 4
    for number, (prompt, goal) in asked.items():
        assert number in failed or texts[number] == text_of(prompt, goal)
    assert threaded.worker.threads == {"srt-worker"}  # type: ignore[attr-defined]
    assert threaded.busy > 0
    engine.store.check()
    assert engine.store.protected == 0


def test_what_a_worker_raises_is_raised_where_it_is_asked_for() -> None:
    executor = Threaded(FakeWorker(1, fail_at={1}))
    executor.submit(Batch(1, []))
    executor.submit(Batch(2, []))
    with pytest.raises(RuntimeError, match="injected"):
        executor.result()
    assert executor.result().rows == []
    executor.close()


def test_what_waits_when_it_is_closed_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    computed: list[int] = []

    class Gated(FakeWorker):
        def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
            entered.set()
            assert go_on.wait(60)
            computed.append(batch.id)
            return super().run(batch, masks)

    executor = Threaded(Gated(1))
    executor.submit(Batch(1, []))
    executor.submit(Batch(2, []))
    assert entered.wait(60)
    join = executor._thread.join
    monkeypatch.setattr(executor._thread, "join", lambda: (go_on.set(), join(10)))
    executor.close()
    assert computed == [1]


# -- mutations that these tests find -------------------------------------------------------------


MUTATIONS = {
    "a request goes on after its last token": (
        Mutation(Planner, "_foresee", "_.growth > _.pending", always),
        test_rows_follow_and_no_token_is_computed_in_vain,
    ),
    "a penalty does not know the token before": (
        Mutation(FakeWorker, "_follow", "_ = _.after(_)", drop),
        test_rows_follow_and_no_token_is_computed_in_vain,
    ),
    "what ended is believed to go on": (
        Mutation(EngineCore, "_collect", "A.get(B) is not _", become("B not in A")),
        test_a_context_continues_with_its_last_request_in_flight,
    ),
    "scores of a failed pass are not asked for again": (
        Mutation(Request, "rewind", "_.score_from >= 0", never), all_failures,
    ),
    "sums of a failed pass are not asked for again": (
        Mutation(Request, "rewind", "_.unsummed = _", drop), all_failures,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_these_tests_catch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, story = MUTATIONS[name]
    mutate(monkeypatch, mutation)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        story()


@pytest.mark.parametrize(
    ("device", "settings", "wanted"),
    [
        ("cuda", {}, True),
        ("cuda", {"disable_overlap_schedule": True}, False),
        ("cpu", {}, False),
        ("cpu", {"threads": 1}, True),
        ("cpu", {"threads": 2}, False),
        ("cpu", {"threads": 1, "disable_overlap_schedule": True}, False),
    ],
)
def test_where_passes_overlap(
    device: str, settings: dict[str, Any], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert overlaps(Config.of(**settings), device) is wanted
