"""Decisions about parked KV, by the policy's name, over views made by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.config.sections import PARK_POLICIES
from sglang.srt.interception.park_policies import (
    POLICIES,
    RETENTION,
    ParkedItem,
    ParkingDecision,
    ParkingView,
    priced_value,
    unclaimed_value,
)
from sglang.srt.interception.waste import added, chunks, waste_chunk_discard, waste_preserve
from sglang.srt.schedule.costs import Costs, LineFit

COSTS = Costs(LineFit(10.0, 0.05), LineFit(0.0, 0.04))


def view(
    storable: int = 0, room: int = 0, taken: int = 100, others: int = 1000, awaited: int = 0
) -> ParkingView:
    return ParkingView(COSTS, others, 500, room, taken, storable, awaited)


def item(
    number: int, tokens: int = 1000, remaining: float = 1.0, elapsed: float = 0.0,
    lacking: int | None = None,
) -> ParkedItem:  # fmt: skip
    return ParkedItem(number, tokens, tokens if lacking is None else lacking, elapsed, remaining)


def decide(policy: str, items: list[ParkedItem], of: ParkingView) -> ParkingDecision:
    return POLICIES[policy].decide(lambda: items, of)


def test_every_policy_of_the_flag_exists() -> None:
    assert set(POLICIES) == set(PARK_POLICIES)


@pytest.mark.parametrize(
    ("policy", "discarded", "swapped"),
    [("discard", [1, 2], []), ("preserve", [], []), ("swap", [], [1, 2]), ("none", [], [])],
)
def test_plain_policies_treat_all_alike(
    policy: str, discarded: list[int], swapped: list[int]
) -> None:
    made = decide(policy, [item(1), item(2)], view())
    assert (made.discard, made.swap, made.copy) == (discarded, swapped, [])


def test_the_heuristic_goes_by_the_expected_duration() -> None:
    items = [item(1, remaining=3.9), item(2, remaining=3.9, elapsed=0.2), item(3, remaining=7.0)]
    made = decide("heuristic", items, view())
    assert (made.swap, made.discard) == ([2], [3])


def test_ttl_ends_the_claims_that_are_too_old() -> None:
    items = [item(1, elapsed=RETENTION), item(2, elapsed=RETENTION + 0.1, remaining=0.0), item(3)]
    made = decide("ttl", items, view(10_000))
    assert (made.release, made.discard, made.swap, made.copy) == ([2], [], [], [])


def test_eager_copies_at_once_within_the_budget() -> None:
    items = [item(1, lacking=0), item(2, lacking=700), item(3), item(4)]
    assert decide("eager", items, view(1500, room=10**6)).copy == [2, 3]
    assert decide("eager", items, view(0)).copy == []
    assert POLICIES["eager"].pause == 0


item_lists = st.lists(
    st.tuples(st.integers(1, 5000), st.floats(0, 100), st.floats(0, 1)), min_size=1, max_size=12
).map(
    lambda each: [
        item(i, tokens, left, lacking=int(share * tokens))
        for i, (tokens, left, share) in enumerate(each)
    ]
)


@given(item_lists, st.integers(0, 6000), st.integers(0, 50_000), st.integers(0, 10_000))
def test_min_waste_is_the_papers(
    items: list[ParkedItem], storable: int, others: int, awaited: int
) -> None:
    """Equation 5 decides over every context that is not copied. A copied one wastes less than that
    at least in the time of loading it."""
    made, least = decide("min-waste", items, view(storable, others=others, awaited=awaited)), {}
    for i in items:
        discard = waste_chunk_discard(i.tokens, others, chunks(i.tokens, 500), added(COSTS))
        keep = waste_preserve(i.tokens, 1e3 * i.remaining)
        least[i.id] = min(discard, keep)
        if i.id in made.swap:
            assert COSTS.copy.b * i.tokens * i.tokens <= least[i.id]
        else:
            assert (i.id in made.discard) is (discard < keep)
    order = [least[number] for number in made.swap]
    assert order == sorted(order, reverse=True), "the most wasteful first"
    if not storable:
        assert all(not i.lacking for i in items if i.id in made.swap)


def test_min_waste_copies_in_parts_what_one_pass_may_not() -> None:
    """A pass of 100 tokens takes 15 ms, and loading 1,000 tokens 40 ms."""
    items = [item(1, remaining=0.05), item(2, remaining=50.0), item(3, remaining=0.1)]
    assert decide("min-waste", items, view(1000, others=10**6)).swap == [2, 3]
    assert decide("min-waste", [items[1]], view(100, others=10**6)).swap == [2]
    assert decide("min-waste", [items[2]], view(250, others=10**6)).swap == [3], "45 + 40 ms"
    assert decide("min-waste", [items[2]], view(100, others=10**6)).swap == [], "135 + 40 ms"
    assert decide("min-waste", [items[2]], view(250, others=10**6, awaited=500)).swap == []


def test_what_host_memory_has_is_given_up_at_once() -> None:
    assert decide("min-waste", [item(1, lacking=0)], view(0, others=10**6)).swap == [1]


def test_nothing_is_copied_while_memory_lasts() -> None:
    items = [item(1), item(2)]
    second = 1 + int(1e3 * 100 / COSTS.forward.at(100))  # tokens that such passes take in it
    assert decide("priced", items, view(1, room=second)).copy == []
    assert decide("priced", items, view(1, room=second - 1)).copy == [1]
    assert decide("priced", items, view(0, room=0)).copy == []


def test_what_can_be_copied_in_time_later_is_not_copied_yet() -> None:
    """A pass takes 100 tokens and 15 ms, and may copy 200. A copy of 1,000 tokens takes 5 passes,
    the next decision is 6.7 passes away, and 11.7 passes take 1,167 tokens."""
    items = [item(1, remaining=9.0), item(2, remaining=8.0)]
    assert decide("priced", items, view(200, room=1160)).copy == [1]
    assert decide("priced", items, view(200, room=1170)).copy == []
    assert decide("priced", items, view(100, room=1170)).copy == [1], "a slower link begins sooner"


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.floats(0.01, 600.0)), max_size=8),
    st.integers(1, 2000), st.integers(0, 20_000), st.integers(0, 20_000),
)  # fmt: skip
def test_more_room_means_no_more_copies(
    parked: list[tuple[int, bool, float]], storable: int, room: int, more: int
) -> None:
    items = [
        item(n, tokens, seconds, lacking=tokens if lacks else 0)
        for n, (tokens, lacks, seconds) in enumerate(parked)
    ]
    few = decide("priced", items, view(storable, room + more)).copy
    many = decide("priced", items, view(storable, room)).copy
    assert many[: len(few)] == few
    if items and room == 0:
        first = min(items, key=lambda one: priced_value(one, COSTS))
        assert not first.lacking or many[:1] == [first.id], "what goes at once is copied at once"


def test_what_returns_last_is_copied_first_and_once() -> None:
    items = [item(1, remaining=1.0), item(2, remaining=9.0), item(3, remaining=5.0)]
    assert decide("priced", items, view(2000, taken=600)).copy == [2, 3]
    items[1] = item(2, remaining=9.0, lacking=0)
    assert decide("priced", items, view(2000, taken=600)).copy == [3, 1]


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from([0, 1000]))
def test_a_page_is_worth_less_the_later_it_is_needed(a: float, b: float, lacking: int) -> None:
    first, second = sorted((a, b))
    sooner = priced_value(item(1, remaining=first, lacking=lacking), COSTS)
    assert sooner >= priced_value(item(1, remaining=second, lacking=lacking), COSTS) > 0
    assert sooner <= priced_value(item(1, remaining=first), COSTS) < math.inf


@given(st.floats(0.02, 1e6))
def test_with_equal_chances_the_order_is_by_time(age: float) -> None:
    assert unclaimed_value(age, 1.0, COSTS) == pytest.approx(
        priced_value(item(1, remaining=age), COSTS)
    )
    assert unclaimed_value(age, 0.5, COSTS) < unclaimed_value(age, 1.0, COSTS)
