"""Costly grammars share a budget a pass: others wait for a count of steps, and no text changes."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import EOS, TOKEN_BYTES, FakeWorker
from helpers.toy_grammar import bits
from sglang.ir.constraint import Constraint
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Done, LoadAdapter, Open, Tokens
from sglang.srt.core.progress import GRAMMAR, MESSAGES, PASS, RESULTS, Progress
from sglang.srt.engine import planner
from sglang.srt.engine.admission import MOST_REPLAYED
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline
from sglang.srt.engine.masks import SECONDS, GrammarBudget
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, Matcher

BUDGET = 100  # units of work a pass
UNIT = SECONDS / BUDGET
ALLOWED = frozenset(range(1, 40)) - {EOS}


class Meter:
    """Work done by all grammars, in units. It is the clock of their budgets, a UNIT each."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now * UNIT


class Worker:
    """A grammar of which a mask, and a token taken, costs ``work`` units each. ``forced``: tokens
    at the beginning of which there is no choice."""

    path = "toy"

    def __init__(self, meter: Meter, work: int, forced: int = 0, at: int = 0) -> None:
        self.meter, self.work, self.free, self.at = meter, work, forced, at
        self.accepting = self.finished = False

    def matcher(self) -> Matcher:
        return Worker(self.meter, self.work, self.free)

    def fork(self) -> Matcher:
        return Worker(self.meter, self.work, self.free, self.at)

    def mask(self) -> bytes:
        self.meter.now += self.work
        return bits(ALLOWED if self.at >= self.free else frozenset([7]))

    def advance(self, token: int) -> bool:
        self.meter.now += self.work
        self.at += 1
        return token in (ALLOWED if self.at > self.free else [7])

    def forced(self, limit: int) -> list[int]:
        count = max(0, min(limit, self.free - self.at))
        self.meter.now += self.work * count
        return [7] * count

    def draft(self, limit: int) -> list[int]:
        return []

    def rewrite(self) -> tuple[int, list[int]]:
        return 0, []

    def rollback(self, count: int) -> None:
        self.at -= count


class Shop:
    """The constraint's text is "WORK" or "WORK FORCED"."""

    counts: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def submit(self, constraint: Constraint) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        future.set_result(Worker(self.meter, *map(int, constraint.text.split())))
        return future


class Run:
    """A ``Desk`` whose passes have a budget of BUDGET units, or none."""

    def __init__(self, budget: float = BUDGET) -> None:
        self.meter = Meter()
        self.desk = Desk(grammars=Shop(self.meter))
        self.desk.engine.planner.new_budget = lambda: GrammarBudget(budget * UNIT, self.meter)
        self.steps: list[float] = []  # work of each

    def ask(self, number: int, text: str, adapter: str = "", **changes: Any) -> None:
        goal = generate(constraint=Constraint("regex", text) if text else None, **changes)
        before = self.meter.now
        tokens = ints([7, 8, number]).tobytes()
        self.desk.send(Open(number, tokens, adapter=adapter), Advance(number, number, goal))
        self.steps.append(self.meter.now - before)

    def load(self, *names: str) -> None:
        """Adapters, one of which a pass may have."""
        before = self.desk.engine
        facts = {"lora": True, "max_loras_per_batch": 1, "max_loaded_loras": len(names)}
        info = msgspec.structs.replace(before.info, **facts)
        engine = self.desk.engine = EngineCore(
            Inline(FakeWorker(1)), info, ScheduleConfig(), TOKEN_BYTES, grammars=Shop(self.meter)
        )
        engine.planner.new_budget = before.planner.new_budget
        for number, name in enumerate(names, 1):
            self.desk.send(LoadAdapter(number, name, "here"))
        while engine.adapters.pending:
            self.desk.send()

    def step(self) -> None:
        before = self.meter.now
        self.desk.step()
        self.steps.append(self.meter.now - before)

    def run(self) -> None:
        while self.desk.engine.busy:
            self.step()

    def text(self, number: int) -> list[int]:
        return [token for event in self.desk.events[number] if isinstance(event, Tokens)
                for token in event.tokens]  # fmt: skip

    def done(self, number: int) -> bool:
        return any(isinstance(event, Done) for event in self.desk.events.get(number, []))


def test_a_step_is_bounded_whatever_the_copies() -> None:
    """One row may begin while anything is left: a mask, then a token taken, of 60 units each."""
    run = Run()
    for number in range(1, 17):
        run.ask(number, "60", most=5)
    run.run()
    assert max(run.steps) <= 2 * (BUDGET + 60)
    assert all(len(run.text(number)) == 5 for number in range(1, 17))


def test_a_victim_gets_a_token_every_step() -> None:
    run = Run()
    for number in range(1, 17):
        run.ask(number, "60", most=10)
    run.step()
    run.ask(20, "", most=20)
    steps = 0
    while not run.done(20):
        run.step()
        steps += 1
    assert steps <= 22
    assert not all(run.done(number) for number in range(1, 17))


def test_a_cheap_grammar_goes_before_costly_ones() -> None:
    run = Run()
    for number in range(1, 17):
        run.ask(number, "99", most=20)
    for _ in range(20):
        run.step()
    run.ask(20, "1", most=20)
    steps = 0
    while not run.done(20):
        run.step()
        steps += 1
    assert steps <= 30
    assert max(run.steps) <= 2 * (BUDGET + 99)


def test_every_costly_request_has_its_turn() -> None:
    run = Run()
    for number in range(1, 9):
        run.ask(number, "200", most=100)
    for _ in range(80):
        run.step()
    lengths = [len(run.text(number)) for number in range(1, 9)]
    assert min(lengths) >= 5
    assert max(lengths) - min(lengths) <= 4


@pytest.mark.parametrize("changes", [{}, {"temperature": 1.0, "seed": 5}, {"score_from": 0}])
def test_texts_are_those_without_a_budget(changes: dict[str, Any]) -> None:
    one, other = Run(), Run(float("inf"))
    for run in (one, other):
        for number in range(1, 13):
            run.ask(number, f"{30 * (number % 4)} {number % 3}", most=8, **changes)
        run.run()
    for number in range(1, 13):
        assert one.text(number) == other.text(number)
        assert len(one.text(number)) == 8
    assert one.desk.engine.stats.postponed_rows > 0
    assert other.desk.engine.stats.postponed_rows == 0


def test_forced_text_is_taken_in_parts() -> None:
    run = Run()
    for number in range(1, 9):
        run.ask(number, "10 200", most=300)
    run.run()
    assert all(run.text(number)[:200] == [7] * 200 for number in range(1, 9))
    assert max(run.steps) <= 2 * BUDGET + 3 * 32 * 10


def test_memory_is_sound_where_rows_wait() -> None:
    run = Run()
    for number in range(1, 9):
        run.ask(number, "60", most=6)
    while run.desk.engine.busy:
        run.step()
        run.desk.engine.store.check()
    assert run.desk.engine.stats.postponed_rows > 0


@pytest.mark.slow
def test_an_adapter_has_its_turn_whatever_its_grammar_costs() -> None:
    """The adapter's request is the oldest. Free ones with another adapter never cease to come."""
    run = Run()
    run.load("a", "b")
    run.ask(1, "200", "a", most=3)
    for number in range(2, 10):
        run.ask(number, "200", most=100)
    steps = 0
    while not run.done(1):
        if steps % 5 == 0:
            run.ask(20 + steps, "", "b", most=10)
        run.step()
        steps += 1
        assert steps <= 60, "others with another adapter pass it by"
    run.run()
    assert all(run.done(20 + step) for step in range(0, steps, 5))


def test_plain_rows_pay_for_nothing_they_do_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the order of grammars nor for a report on prompts."""
    calls: list[str] = []

    def count(name: str, owner: object) -> None:
        before = getattr(owner, name)

        def counted(*args: object) -> object:
            calls.append(name)
            return before(*args)

        monkeypatch.setattr(owner, name, counted)

    run = Run()
    count("by_cost", planner)
    count("_reported", run.desk.engine.planner)
    for number in range(1, 9):
        scored: dict[str, Any] = {"score_from": 0} if number == 1 else {}
        run.ask(number, "", most=20, **scored)
    run.step()
    assert calls == ["_reported"] * 8
    run.run()
    assert calls == ["_reported"] * 8
    for number in range(11, 14):
        run.ask(number, "99", most=5)
    run.run()
    assert "by_cost" in calls


def test_the_place_of_the_loop_names_who_it_works_for() -> None:
    """The grammar's own request while a mask is made in a pass, and none when that is over."""
    run = Run()
    engine = run.desk.engine
    progress = engine.progress = Progress()
    places: list[tuple[int, int, int]] = []
    clock = run.meter

    class Watching(Worker):
        def matcher(self) -> Matcher:
            return Watching(clock, self.work)

        def mask(self) -> bytes:
            places.append(progress.read())
            progress.at(MESSAGES)  # as the loop goes on beside a worker of another thread
            places.append(progress.read())
            progress.at(PASS)
            return super().mask()

    future: Future[CompiledGrammar] = Future()
    future.set_result(Watching(clock, 1))
    engine._compiling._grammars.submit = lambda constraint: future  # type: ignore[union-attr, method-assign]
    run.ask(1, "1", most=2)
    assert progress.read() == (0, MESSAGES, 0)
    run.ask(2, "", most=2, stop=("none",))
    run.step()
    assert places == [(0, GRAMMAR, 1), (0, MESSAGES, 0)]
    assert progress.read() == (0, RESULTS, 0)
    progress.at(PASS)
    assert progress.read() == (0, PASS, 0)


def test_a_postponed_last_token_is_sampled_later_in_a_pipeline() -> None:
    meter = Meter()
    desk = Desk(depth=4, grammars=Shop(meter))
    desk.engine.planner.new_budget = lambda: GrammarBudget(UNIT, meter)
    goal = generate(1, constraint=Constraint("regex", "1"))
    requests = [desk.ask([7, 8, n], goal) for n in range(3)]
    desk.run()
    assert desk.engine.stats.postponed_rows > 0
    assert [len(desk.tokens(request)) for request in requests] == [1, 1, 1]
    desk.finish()


def test_few_texts_are_read_again_in_a_step() -> None:
    """All of them have their grammar at once, as after an engine was lost."""
    meter = Meter()
    desk = Desk(grammars=Shop(meter))
    text = ints([7, *[9] * 2000]).tobytes()
    goal = generate(3, constraint=Constraint("regex", "1"), since=1)
    for number in range(6):
        desk.send(Open(number, text))
    verbs = [Advance(number, number, goal, close=True) for number in range(6)]
    steps = []
    while verbs or desk.engine.compiling:
        before = meter.now
        desk.send(*verbs)
        verbs = []
        steps.append(meter.now - before)
    assert max(steps) <= MOST_REPLAYED
    assert sum(steps) >= 6 * 2000
    desk.run()
    assert [len(desk.tokens(number)) for number in range(6)] == [3] * 6
    desk.finish()


def test_forced_beginnings_share_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``--jump-forward string``: completions of one prompt have their grammar at once."""

    def rewrite(worker: Worker) -> tuple[int, list[int]]:
        worker.meter.now += 60
        return 0, [7] * (worker.free - worker.at)

    monkeypatch.setattr(Worker, "rewrite", rewrite)
    meter = Meter()
    desk = Desk(grammars=Shop(meter), jumps="string")
    desk.engine.planner.new_budget = lambda: GrammarBudget(BUDGET * UNIT, meter)
    goal = generate(9, constraint=Constraint("regex", "1 5"))
    for number in range(12):
        desk.send(Open(number, ints([7, 8, number]).tobytes()))
    desk.send(*[Advance(number, number, goal, close=True) for number in range(12)])
    assert meter.now < 2 * BUDGET
    desk.run()
    assert all(desk.tokens(number)[:5] == [7] * 5 for number in range(12))
    assert all(len(desk.tokens(number)) == 9 for number in range(12))
    desk.finish()
