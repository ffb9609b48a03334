"""Capacity beside latency-sensitive requests, and the orders that know programs."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.capacity_oracle import allowed
from helpers.desk import Desk, generate
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.core.call_hints import CallHint
from sglang.srt.interception.attained import FIRST, PROGRAMS, AttainedService
from sglang.srt.schedule.capacity import LEAST, Capacity
from sglang.srt.schedule.costs import LineFit, PassTimes
from sglang.srt.schedule.prefill_budget import PrefillBudget
from sglang.srt.schedule.scheduler import order, plan
from sglang.srt.schedule.scheduler_view import Item, View

TIMES = PassTimes(LineFit(20.0, 0.001), 0.05, 100)  # milliseconds
CHAT = CallHint("chat", "latency")
MAP = CallHint("book", "latency", group=0)


class Nothing:
    tokens = pins = host = 0
    path = ()


def view(waiting: list[Item], capacity: Capacity | None = None, running: int = 1) -> View:
    return View(
        step=1, running=[Item(900 + n, -1 - n, 1, 8, 8) for n in range(running)], waiting=waiting,
        available=10**6, page_size=1, budget=PrefillBudget(10**6), slots=100, reserve=0.0,
        match=lambda number: Nothing(), exclusive=lambda number: 0, start=lambda number: 0,
        capacity=capacity,
    )  # fmt: skip


def admitted(view: View, policy: str = "fcfs", overtakes: int = 9) -> list[int]:
    return [number for number, _ in plan(view, policy, overtakes).rows if number < 900]


def new(number: int, work: int = 100, hint: CallHint | None = None, **more: Any) -> Item:
    return Item(number, number, work, 8, hint=hint, **more)


def full(*running: tuple[CallHint | None, int]) -> Capacity:
    capacity = Capacity(TIMES, 40.0, 0)
    for hint, tokens in running:
        capacity.join(hint, tokens)
    return capacity


hints = st.none() | st.builds(
    CallHint,
    program=st.sampled_from("pq"),
    kind=st.sampled_from(["", "latency", "throughput"]),
    tpot_ms=st.sampled_from([0.0, 0.0, 25.0, 30.0, 100.0]),
    group=st.integers(-1, 2),
)
calls = st.tuples(hints, st.integers(1, 8000))


@given(running=st.lists(calls, max_size=12), more=calls)
def test_a_request_joins_where_every_target_bears_it(running: Any, more: Any) -> None:
    hint, tokens = more
    pass_ms = TIMES.decode.at(sum(tokens for _, tokens in [*running, more]))
    want = allowed([hint for hint, _ in running], hint, pass_ms, 40.0)
    assert full(*running).admits(hint, tokens) == want


@given(
    running=st.lists(st.tuples(st.none(), st.integers(1, 10**6)), max_size=9),
    work=st.lists(st.integers(1, 10**5), max_size=9),
)
def test_without_hints_a_plan_is_as_before(running: Any, work: list[int]) -> None:
    waiting = [new(n, count) for n, count in enumerate(work)]
    capacity = full(*running)
    budget = PrefillBudget(512)
    assert capacity.within(budget) is budget
    for policy in ("lpm", "fcfs", "app", "attained"):
        before, after = view(waiting), view(waiting, capacity)
        assert plan(after, policy, 9) == plan(before, policy, 9)


def test_a_hint_without_a_target_holds_nothing() -> None:
    capacity = full((CallHint("p", "throughput"), 10**6))
    assert capacity.admits(None, 10**6)


def test_a_latency_sensitive_request_holds_others_at_its_target() -> None:
    capacity = full((CHAT, 500))
    assert capacity.admits(None, 19_500)
    assert not capacity.admits(None, 19_501)


def test_a_target_of_its_own_goes_before_the_default() -> None:
    assert not full((CallHint("p", "", tpot_ms=21.0), 500)).admits(None, 1000)
    assert full((CallHint("p", "latency", tpot_ms=90.0), 500)).admits(None, 50_000)


def test_members_of_a_group_do_not_hold_each_other() -> None:
    capacity = full((MAP, 19_000), (MAP, 19_000))
    assert capacity.admits(MAP, 19_000)
    assert not capacity.admits(None, 1), "others feel the group's target"
    assert not capacity.admits(CallHint("book", "latency", group=1), 1)
    assert not capacity.admits(CallHint("other", "latency", group=0), 1)


def test_a_group_is_split_by_the_target_of_another() -> None:
    waiting = [new(n, 5000, MAP) for n in range(6)]
    assert admitted(view(waiting, full((CHAT, 500)))) == [0, 1, 2]
    assert admitted(view(waiting, full((MAP, 500)))) == list(range(6))


def test_who_is_admitted_counts_for_the_next() -> None:
    waiting = [new(1, 500, CHAT), new(2, 30_000), new(3, 100)]
    assert admitted(view(waiting, full())) == [1, 3]
    assert admitted(view(waiting[1:], full())) == [2, 3]


def test_what_is_held_is_passed_so_often_and_no_more() -> None:
    small = [new(n, 100) for n in range(2, 6)]
    passed = view([new(1, 30_000, overtaken=8), *small], full((CHAT, 500)))
    assert admitted(passed, overtakes=9) == [2, 3, 4, 5]
    stuck = view([new(1, 30_000, overtaken=9), *small], full((CHAT, 500)))
    assert admitted(stuck, overtakes=9) == []
    for policy in ("lpm", "app", "attained"):
        stuck = view([*small, new(6, 30_000, overtaken=9)], full((CHAT, 500)))
        assert admitted(stuck, policy, overtakes=9) == []


def test_prompts_take_what_the_target_leaves_of_a_pass() -> None:
    budget = PrefillBudget(10**6)
    assert full((CHAT, 500)).within(budget).tokens == (40.0 - 20.5) / 0.05
    assert full((CHAT, 100_000)).within(budget).tokens == LEAST, "prompts go on in any case"
    assert full((MAP, 500)).within(budget) is budget, "a group's end counts, not its tokens"
    assert full((CHAT, 1)).within(PrefillBudget(9)).tokens == 9


def test_stricter_groups_leave_the_target_of_a_lone_request() -> None:
    budget, lone = PrefillBudget(10**6), CallHint("chat", tpot_ms=30.0)
    groups = [(CallHint("book", tpot_ms=ms, group=int(ms)), 0) for ms in (5.0, 8.0)]
    want = (30.0 - 20.5) / 0.05
    assert full((lone, 500), *groups).within(budget).tokens == want
    assert full(*groups, (lone, 500)).within(budget).tokens == want
    assert full(*groups, (CHAT, 0), (lone, 500), (CHAT, 0)).within(budget).tokens == want


def test_times_of_passes_are_learnt_by_kind() -> None:
    times = PassTimes()
    times.add(500, 100, 99.0)  # nothing to compare it with yet
    for held in range(100, 4100, 100):
        times.add(held, 0, 20.0 + 0.01 * held)
        times.add(held, 40, 20.0 + 0.01 * held + 8.0)
    assert times.decode.at(5000) == pytest.approx(70.0, rel=1e-3)
    assert times.prompt == pytest.approx(0.2, rel=0.05)
    assert times.passes == 40


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "app", "attained"])
def test_the_engine_holds_what_would_make_passes_too_long(policy: str) -> None:
    """A pass takes at least 1 ms, 0.2 ms a token and 0.01 ms a token of all contexts. What is held
    is passed ``max_overtakes`` times."""
    desk = Desk(schedule_policy=policy, max_overtakes=3)
    warm = [desk.ask([n] * 90 * n, generate(40), hint=CallHint("warm")) for n in range(1, 5)]
    desk.run()
    chat = desk.ask([9] * 20, generate(200), hint=CallHint("chat", "latency", tpot_ms=2.5))
    desk.step()
    large = desk.ask([10] * 400, generate(2))
    small = []
    for number in range(8):
        small.append(desk.ask([20 + number] * 4, generate(2)))
        for _ in range(4):
            desk.step()
    desk.run()
    assert list(desk.events) == [*warm, chat, *small[:3], large, *small[3:]]
    desk.finish()


def test_calls_keep_the_place_of_their_application() -> None:
    early, late = 5 << 40, 9 << 40
    waiting = [
        Item(1, late + 1, 10, 0, hint=CallHint("b", stage=3)),
        Item(2, early + 2, 10, 0, hint=CallHint("a", stage=0)),
        Item(3, early + 7, 10, 0, hint=CallHint("a", stage=2)),
        Item(4, (7 << 40) + 3, 10, 0),
        Item(5, early + 8, 10, 0, hint=CallHint("a", stage=2)),
    ]
    assert [item.id for item in order("app", view(waiting), 9)] == [3, 5, 2, 4, 1]


def test_programs_that_were_served_least_go_first() -> None:
    service = AttainedService()
    large, small = CallHint("large"), CallHint("small")
    service.serve(large, 40 * FIRST)
    service.serve(small, FIRST - 1)
    service.serve(None, 10**9)
    service.serve(CallHint(), 10**9)
    assert [service.level(hint) for hint in (large, small, CallHint("new"), None)] == [6, 0, 0, 0]
    service.serve(small, 1)
    assert service.level(small) == 1

    class Found(Nothing):
        def __init__(self, tokens: int) -> None:
            self.tokens = tokens

    found = {1: 90, 2: 10, 3: 50, 4: 50}
    levels = {1: 6, 2: 0, 3: 0, 4: 0}
    waiting = [new(n, level=levels[n]) for n in (1, 2, 4, 3)]
    seen = view(waiting)._replace(match=lambda number: Found(found[number]))
    assert [item.id for item in order("attained", seen, 9)] == [3, 4, 2, 1]
    waiting[0] = new(1, level=6, overtaken=9)
    assert [item.id for item in order("attained", seen, 9)] == [1, 3, 4, 2]


def test_attained_service_is_bounded() -> None:
    service = AttainedService()
    for number in range(PROGRAMS + 10):
        service.serve(CallHint(f"p{number}"), 10 * FIRST)
    assert service.level(CallHint("p0")) == 0
    assert service.level(CallHint("p11")) > 0
    assert len(service._tokens) == PROGRAMS


def test_a_capacity_without_running_requests_admits() -> None:
    assert full().admits(CHAT, 10**7)
