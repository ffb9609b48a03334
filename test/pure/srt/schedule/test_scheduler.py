"""The scheduler alone: orders, admission, the budget, retraction. A view is plain data."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.schedule.prefill_budget import PrefillBudget
from sglang.srt.schedule.scheduler import AGING, ORDERS, Reserve, order, pages, plan, victims
from sglang.srt.schedule.scheduler_view import Item, PassDecision, View


class Found(NamedTuple):
    """A match."""

    tokens: int = 0
    pins: int = 0
    path: tuple[int, ...] = ()
    host: int = 0


def view(
    running: list[Item] | None = None,
    waiting: list[Item] | None = None,
    found: dict[int, Found] | None = None,
    exclusive: dict[int, int] | None = None,
    budget: int = 1000,
    **changes: object,
) -> View:
    base = View(
        step=1, running=running or [], waiting=waiting or [], available=1000, page_size=1,
        budget=PrefillBudget(budget), slots=100, reserve=0.0,
        match=lambda number: (found or {}).get(number, Found()),
        exclusive=lambda number: (exclusive or {}).get(number, 0), start=lambda number: 0,
    )  # fmt: skip
    return base._replace(**changes)  # type: ignore[arg-type]


def new(number: int, work: int = 10, growth: int = 0, **more: Any) -> Item:
    """A waiting request; it arrives by its number."""
    return Item(number, number, work, growth, **more)


def ids(items: list[Item]) -> list[int]:
    return [item.id for item in items]


# -- orders --------------------------------------------------------------------------------------


def test_every_policy_of_the_config_has_an_order() -> None:
    from sglang.srt.config.sections import POLICIES

    assert set(ORDERS) == set(POLICIES)
    assert set(AGING) < set(ORDERS)


def test_first_come_first_served() -> None:
    assert ids(order("fcfs", view(waiting=[new(3), new(1), new(2)]), 0)) == [1, 2, 3]


def test_priority_then_age() -> None:
    waiting = [new(1), new(2, priority=5), new(3, priority=-1), new(4, priority=5)]
    assert ids(order("priority", view(waiting=waiting), 0)) == [2, 4, 1, 3]


def test_longest_prefix_match_then_age() -> None:
    found = {1: Found(3), 2: Found(9), 3: Found(9), 4: Found(0)}
    waiting = [new(n) for n in (1, 2, 3, 4)]
    assert ids(order("lpm", view(waiting=waiting, found=found), 99)) == [2, 3, 1, 4]


def test_random_is_reproducible() -> None:
    waiting = [new(n) for n in range(20)]
    one = [ids(order("random", view(waiting=waiting, step=step), 99)) for step in range(9)]
    two = [ids(order("random", view(waiting=waiting[::-1], step=step), 99)) for step in range(9)]
    assert one == two, "it depends on the step alone"
    assert len({tuple(o) for o in one}) == 9
    assert all(sorted(o) == list(range(20)) for o in one)


def depth_first(paths: dict[int, tuple[int, ...]], depths: dict[int, int]) -> list[int]:
    """The paper's order by recursion: children by weight, then what ends at the node or inside the
    edge to it, the deeper first."""
    here = sorted((n for n, path in paths.items() if not path), key=lambda n: (-depths[n], n))
    below: dict[int, dict[int, tuple[int, ...]]] = {}
    for number, path in paths.items():
        if path:
            below.setdefault(path[0], {})[number] = path[1:]
    out = []
    for _, group in sorted(below.items(), key=lambda child: (-len(child[1]), child[0])):
        out += depth_first(group, depths)
    return out + here


@settings(max_examples=300, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 30))
def test_dfs_weight_is_a_depth_first_search(seed: int) -> None:
    r = random.Random(seed)
    parents = {n: r.randrange(n) if n else None for n in range(r.randint(1, 12))}

    def path(node: int) -> tuple[int, ...]:
        up = parents[node]
        return () if up is None else (*path(up), node)  # node 0 is the root

    paths = {number: path(r.choice(list(parents))) for number in range(r.randint(1, 15))}
    depths = {number: 3 * len(p) - r.randrange(3) * bool(p) for number, p in paths.items()}
    found = {number: Found(depths[number], 0, p) for number, p in paths.items()}
    waiting = [new(number) for number in paths]
    r.shuffle(waiting)
    result = ids(order("dfs-weight", view(waiting=waiting, found=found), 99))
    assert result == depth_first(paths, depths)


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "random"])
def test_the_overdue_go_first_oldest_first(policy: str) -> None:
    found = {1: Found(0), 2: Found(5, 0, (1,)), 3: Found(0), 4: Found(9, 0, (1, 2))}
    waiting = [new(1, overtaken=3), new(2, overtaken=2), new(3, overtaken=4), new(4, overtaken=0)]
    result = ids(order(policy, view(waiting=waiting, found=found), 3))
    assert result[:2] == [1, 3]
    assert set(result[2:]) == {2, 4}


# -- the plan ------------------------------------------------------------------------------------


def test_decoding_rows_precede_prompts_outside_the_budget() -> None:
    running = [Item(1, 1, 1, 5), Item(2, 2, 30, 5), Item(3, 3, 1, 5)]
    decision = plan(view(running, [new(4)], budget=20), "fcfs", 0)
    assert decision == PassDecision([], [(1, 1), (2, 20), (3, 1)])


def test_a_prompt_is_cut_to_the_budget_the_next_gets_the_rest() -> None:
    decision = plan(view([], [new(1, 30), new(2, 30), new(3, 30)], budget=45), "fcfs", 0)
    assert decision.rows == [(1, 30), (2, 15)]


def test_cached_tokens_cost_no_budget() -> None:
    found = {1: Found(25), 2: Found(28)}
    decision = plan(view([], [new(1, 30), new(2, 30)], found, budget=6), "fcfs", 0)
    assert decision.rows == [(1, 5), (2, 1)]


def test_tokens_in_host_memory_cost_no_budget_but_pages() -> None:
    waiting = [Item(1, 1, 40, 0), Item(2, 2, 30, 0)]
    found = {1: Found(10, 0, (), 20), 2: Found(0, 0, (), 30)}
    decision = plan(view([], waiting, found, available=60, budget=100), "fcfs", 1)
    assert decision.rows == [(1, 10), (2, 1)], "a last token at least, should not all be loaded"
    decision = plan(view([], waiting, found, available=59, budget=100), "fcfs", 1)
    assert decision.rows == [(1, 10)]


def test_longest_prefix_counts_host_memory() -> None:
    waiting = [Item(1, 1, 40, 0), Item(2, 2, 40, 0)]
    found = {1: Found(10), 2: Found(0, 0, (), 20)}
    assert [item.id for item in order("lpm", view([], waiting, found), 9)] == [2, 1]


def test_slots_limit_admission() -> None:
    decision = plan(view([], [new(n, 1) for n in range(5)], slots=2), "fcfs", 0)
    assert decision.rows == [(0, 1), (1, 1)]


def test_nobody_slips_past_the_first_that_does_not_fit() -> None:
    waiting = [new(1, 10), new(2, 95), new(3, 1)]
    assert plan(view([], waiting, available=100), "fcfs", 0).rows == [(1, 10)]


def test_the_whole_prompt_must_fit_though_a_chunk_is_planned() -> None:
    running = [Item(9, 0, 1, 0)]
    assert plan(view(running, [new(10, 50)], available=51, budget=5), "fcfs", 0).rows == [
        (9, 1), (10, 5),
    ]  # fmt: skip
    assert plan(view(running, [new(10, 50)], available=50, budget=5), "fcfs", 0).rows == [(9, 1)]


def test_pins_count_against_memory() -> None:
    """Matched pages without a user are no longer evictable once the request has them."""
    running, found = [Item(9, 0, 1, 0)], {10: Found(40, 40)}
    assert (10, 10) in plan(view(running, [new(10, 50)], found, available=51), "fcfs", 0).rows
    assert plan(view(running, [new(10, 50)], found, available=50), "fcfs", 0).rows == [(9, 1)]


def test_prompts_under_way_keep_the_room_for_their_rest() -> None:
    running = [Item(1, 1, 60, 0)]
    waiting = [new(2, 20)]
    assert plan(view(running, waiting, budget=20), "fcfs", 0).rows == [(1, 20)], "no budget left"
    running = [Item(1, 1, 60, 0, fixed=True)]  # the row is in the pass already; 60 are to follow
    assert plan(view(running, waiting, available=80, budget=20), "fcfs", 0).rows == [(2, 20)]
    assert plan(view(running, waiting, available=79, budget=20), "fcfs", 0).rows == []


def test_the_reserve_keeps_room_for_growth_unless_alone() -> None:
    running = [Item(1, 1, 1, 100)]
    kept = view(running, [new(2, 10, 100)], available=110, reserve=0.5)
    assert plan(kept, "fcfs", 0).rows == [(1, 1)]
    assert plan(kept._replace(available=111), "fcfs", 0).rows == [(1, 1), (2, 10)]
    alone = view([], [new(2, 10, 100)], available=10, reserve=1.0)
    assert plan(alone, "fcfs", 0).rows == [(2, 10)]


def test_pages_are_rounded_up() -> None:
    assert [pages(n, 4) for n in (-3, 0, 1, 4, 5)] == [0, 0, 1, 1, 2]
    running = [Item(1, 1, 1, 9, room=0), Item(2, 2, 1, 9, room=3)]
    assert plan(view(running, [new(3, 5)], page_size=4, available=3), "fcfs", 0).rows == [
        (1, 1), (2, 1), (3, 5),
    ]  # fmt: skip
    assert plan(view(running, [new(3, 5)], page_size=4, available=2), "fcfs", 0).rows == [
        (1, 1), (2, 1),
    ]  # fmt: skip


# -- retraction ----------------------------------------------------------------------------------


def test_the_youngest_give_way_until_there_is_room() -> None:
    running = [Item(n, n, 1, 9) for n in range(1, 6)]
    exclusive = dict.fromkeys(range(1, 6), 2)
    decision = plan(view(running, [], exclusive=exclusive, available=0), "fcfs", 0)
    assert decision.retract == [5, 4]
    assert decision.rows == [(1, 1), (2, 1), (3, 1)]


def test_nobody_is_admitted_in_a_pass_that_retracts() -> None:
    running = [Item(1, 1, 1, 9), Item(2, 2, 1, 9)]
    decision = plan(view(running, [new(0, 1)], exclusive={2: 50}, available=0), "fcfs", 0)
    assert decision == PassDecision([2], [(1, 1)])


@settings(max_examples=500, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 30))
def test_victims_are_younger_free_and_as_few_as_possible(seed: int) -> None:
    r = random.Random(seed)
    running = [
        Item(n, n, 1, 1, fixed=r.random() < 0.2) for n in r.sample(range(20), r.randint(1, 8))
    ]
    running.sort(key=lambda item: item.arrival)
    asker = r.choice(running)
    gain = {item.id: r.randint(0, 4) for item in running}
    taken = {item.id for item in running if r.random() < 0.2}
    need = r.randint(1, 10)
    chosen, gained = victims(asker, need, running, taken, gain.__getitem__)
    allowed = [
        i.id for i in running if i.arrival > asker.arrival and not i.fixed and i.id not in taken
    ][::-1]
    assert chosen == allowed[: len(chosen)], "youngest first"
    assert gained == sum(gain[n] for n in chosen)
    if chosen:
        assert gained - gain[chosen[-1]] < need, "one too many"
    if gained < need and chosen != allowed:
        assert not chosen
        assert asker is not running[0], "the oldest takes what it can get"


def test_the_oldest_always_moves() -> None:
    """The oldest gets a row, or all others are retracted, for any counts."""
    for seed in range(500):
        r = random.Random(seed)
        running = [Item(n, n, r.choice([1, 1, 9]), 5) for n in range(r.randint(1, 6))]
        exclusive = {n: r.randint(0, 2) for n in range(6)}
        decision = plan(
            view(running, [], exclusive=exclusive, available=r.randint(0, 3), budget=8), "fcfs", 0
        )
        first = decision.rows and decision.rows[0][0] == 0
        assert first or set(decision.retract) == set(range(1, len(running)))
        assert not set(decision.retract) & {number for number, _ in decision.rows}


def test_the_reserve_learns_from_retractions() -> None:
    reserve = Reserve()
    before = reserve.share
    reserve.retracted()
    assert reserve.share > before
    for _ in range(100):
        reserve.retracted()
    assert reserve.share == 1.0
    for _ in range(10_000):
        reserve.passed()
    assert reserve.share == reserve.low > 0


# -- purity --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ORDERS)
def test_a_plan_changes_nothing_and_repeats(policy: str) -> None:
    for seed in range(100):
        r = random.Random(seed)
        running = [Item(n, n, r.choice([1, 9]), 5, r.randint(0, 3)) for n in range(4)]
        waiting = [new(n, r.randint(5, 20), 5, overtaken=r.randint(0, 4)) for n in range(4, 12)]
        found = {n: Found(r.randint(0, 4), r.randint(0, 4), (r.randint(1, 3),)) for n in range(12)}
        exclusive = {n: r.randint(0, 3) for n in range(4)}
        seen = view(running[:], waiting[:], found, exclusive, available=r.randint(0, 60), step=seed)
        one, two = plan(seen, policy, 2), plan(seen, policy, 2)
        assert one == two
        assert (seen.running, seen.waiting) == (running, waiting)
        planned = [number for number, _ in one.rows]
        assert len(planned) == len(set(planned)), "one row a request"
