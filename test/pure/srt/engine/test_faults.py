"""Fail the Nth allocation, pass, row and watch, for every N of one scenario, as SQLite's tests do.
After each: every request has ended once, the books balance, and a golden request gives the same
tokens as before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import FakeWorker
from helpers.simulation import expected
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.messages import Append, Close, Distribution, Failed, Fill, ForkContext, Score
from sglang.srt.core.workers import Masks
from sglang.srt.engine import admission
from sglang.srt.grammar.stop_watch import StopWatch
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.store import Store

GOLDEN = [9, 8, 7, 6]


class Nth:
    """Counts calls; says "now" at the ``n``-th, and with ``on`` at all that follow."""

    def __init__(self, n: int, on: bool = False) -> None:
        self.n, self.on, self.calls = n, on, 0

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls == self.n or (self.on and self.calls > self.n)


def scenario(desk: Desk) -> list[tuple[int, list[int], Any]]:
    """Sharing, forks, chunks, retraction, scores, stops and an abort, in a tight memory."""
    desk.engine.planner.reserve.share = desk.engine.planner.reserve.low = 0.0
    goal = generate(14, stop=("~~",), stop_regex=("~{3}",))
    asked: list[tuple[int, list[int], Any]] = []

    def ask(tokens: list[int], goal: Any) -> None:
        asked.append((desk.ask(tokens, goal), tokens, goal))

    parent = desk.open([1, 2, 3, 4, 5, 6])
    asked.append((desk.advance(parent, Fill()), [], None))
    desk.run()
    desk.send(ForkContext(parent, 1000), Append(1000, ints([7]).tobytes()))
    asked.append((desk.advance(1000, goal), [1, 2, 3, 4, 5, 6, 7], goal))
    for n in range(4):
        ask([1, 2, 3, 20 + n, n], goal)
    doomed = desk.open([5] * 6)
    asked.append((desk.advance(doomed, goal), [], None))
    for _ in range(5):
        desk.step()
    desk.send(Close(doomed))
    ask([1, 2, 3, 4], Score(1))
    ask([1, 2, 3, 4, 9], Distribution(top=1))
    desk.run()
    return asked


def survives(desk: Desk, allowed: str = "") -> int:
    """Run the scenario and check all promises. Returns how many requests failed."""
    asked = scenario(desk)
    failed = 0
    for request, tokens, goal in asked:
        end = desk.end(request)
        if isinstance(end, Failed):
            failed += 1
            assert allowed, end
            assert allowed in end.message
        elif goal is not None and hasattr(goal, "sampling") and end.reason != "abort":
            assert desk.tokens(request) == expected(tokens, goal.sampling).tokens
    golden = desk.ask(GOLDEN, generate(10))
    desk.run()
    if allowed and isinstance(desk.end(golden), Failed):  # the fault came as late as that
        golden = desk.ask(GOLDEN, generate(10))
        desk.run()
    assert desk.tokens(golden) == expected(GOLDEN, generate(10).sampling).tokens
    desk.finish()
    return failed


@pytest.fixture(autouse=True, params=[1, 2], ids=["one pass", "two passes"])
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the passes in flight at a time, for every ``Desk``."""
    make = Desk.__init__
    monkeypatch.setattr(Desk, "__init__", partialmethod(make, depth=request.param))


def desk(page_size: int, worker: FakeWorker | None = None) -> Desk:
    return Desk(36, page_size, worker=worker, chunked_prefill_size=4)


def test_the_scenario_is_tight() -> None:
    one = desk(1)
    assert survives(one) == 0
    assert one.engine.stats.retractions > 2
    assert one.engine.store.tree.evicted > 20


def count(arm: Callable[[Nth], None], page_size: int) -> int:
    """Calls in a run without a fault."""
    nth = Nth(-1)
    arm(nth)
    survives(desk(page_size))
    assert nth.calls > 5
    return nth.calls


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 2])
def test_the_nth_allocation_raises(page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take = PagePool.take

    def arm(nth: Nth) -> None:
        def faulty(pool: PagePool, pages: int) -> Ints:
            if nth():
                raise MemoryError("injected")
            return take(pool, pages)

        monkeypatch.setattr(PagePool, "take", faulty)

    for n in range(1, count(arm, page_size) + 1):
        arm(Nth(n))
        assert survives(desk(page_size)) == 0, f"allocation {n}"


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 2])
def test_the_nth_growth_is_refused(page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    grow = Store.grow

    def arm(nth: Nth) -> None:
        monkeypatch.setattr(Store, "grow", lambda *given: not nth() and grow(*given))

    for n in range(1, count(arm, page_size) + 1):
        arm(Nth(n))
        one = desk(page_size)
        assert survives(one) == 0, f"growth {n}"
        assert one.engine.stats.plan_misses == 1


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 2])
def test_the_nth_pass_raises(page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeWorker.run

    def arm(nth: Nth) -> None:
        def faulty(worker: FakeWorker, batch: Batch, masks: Masks) -> StepResult:
            if nth():
                raise RuntimeError("injected")
            return run(worker, batch, masks)

        monkeypatch.setattr(FakeWorker, "run", faulty)

    for n in range(1, count(arm, page_size) + 1):
        arm(Nth(n))
        one = desk(page_size)
        survives(one, "injected")
        assert one.engine.stats.failed_passes == 1


@pytest.mark.parametrize("error", [ValueError, MemoryError, RuntimeError])
def test_the_nth_watch_cannot_be_made(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def arm(nth: Nth) -> None:
        def faulty(*given: Any) -> StopWatch:
            if nth():
                raise error("injected")
            return StopWatch(*given)

        monkeypatch.setattr(admission, "StopWatch", faulty)

    for n in range(1, count(arm, 1) + 1):
        arm(Nth(n))
        one = desk(1)
        assert survives(one, "injected") == 1, f"watch {n}"
        assert one.engine.stats.rejected == 1


def test_every_pass_raises() -> None:
    one = desk(1, FakeWorker(1, fail_at=set(range(1, 60))))
    requests = [one.ask([n, n], generate(4)) for n in range(5)]
    one.run()
    assert all(one.failed(request).code == "internal" for request in requests)
    one.finish()


def count_passes() -> int:
    one = desk(1)
    survives(one)
    return one.worker.passes


@pytest.mark.slow
def test_every_row_error_is_its_own() -> None:
    for n in range(1, count_passes() + 1):
        survives(desk(1, FakeWorker(1, break_at={n})), "injected row error")
