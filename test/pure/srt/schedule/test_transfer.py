"""Copies beside a pass take no longer than the pass, by the costs that were learnt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.schedule.costs import Costs, LineFit
from sglang.srt.schedule.transfer import TransferBudget

STEPS = st.lists(st.tuples(st.sampled_from(["store", "load", "less"]), st.integers(1, 400)))


@given(
    st.integers(0, 600), st.sampled_from([1, 4, 16]), st.sampled_from([0, 3, 100, 10**6]),
    st.floats(0, 30), st.floats(0, 1), st.floats(0.1, 200), STEPS,
)  # fmt: skip
def test_constraints_hold_after_every_step(
    tokens: int, size: int, most: int, base: float, each: float, link: float,
    steps: list[tuple[str, int]],
) -> None:  # fmt: skip
    """Copies both ways fit the time of the pass as it was when they were planned; each way takes at
    most three quarters, and ``most``."""
    costs = Costs(LineFit(base, each), LineFit(0.0, 1 / link))
    budget, stored, loaded = TransferBudget(costs, tokens, size, most), 0, 0
    start = link * (base + each * tokens) * (1 + 1e-9)
    for kind, pages in steps:
        if kind == "store":
            pages = min(pages, budget.storable)
            budget.store(pages)
            stored += pages * size
        elif kind == "load":
            pages = min(pages, budget.loadable)
            budget.load(pages)
            loaded += pages * size
        else:
            budget.computes(-pages)
            tokens = max(tokens - pages, 0)
            continue
        now = link * (base + each * tokens)
        assert not pages or stored + loaded <= now * (1 + 1e-9)
        assert stored <= min(start * 3 / 4, most)
        assert loaded <= min(start * 3 / 4, most)


@pytest.mark.parametrize(
    ("link", "sampling", "cheap"),
    [(25.0, 0, False), (25.0, 1, True), (10.0, 1, False), (10.0, 3, True), (100.0, 0, True)],
)  # fmt: skip
def test_copies_are_waited_for_where_computing_delays_more(
    link: float, sampling: int, cheap: bool
) -> None:
    """A token takes 0.05 ms to compute, of each request that samples."""
    costs = Costs(LineFit(10.0, 0.05), LineFit(0.0, 1 / link))
    assert TransferBudget(costs, 64, 1, 10**6, sampling).cheap is cheap


def test_a_request_waits_behind_those_that_wait_before_it() -> None:
    """A token takes 0.2 ms of the four that sample, and its copy 0.04 ms."""
    budget = TransferBudget(Costs(LineFit(10.0, 0.05), LineFit(0.0, 0.04)), 64, 1, 10**6, 4)
    assert not budget.waits(100), "the pass copies nothing"
    budget.load(1)
    assert not budget.waits(0)
    assert budget.waits(100)
    assert not budget.waits(25), "computing it takes 5 ms, and all copies"
    assert budget.waits(26), "126 copies take 5.04 ms, computing these 5.2"
    assert budget.awaited == 126


def test_a_line_is_learnt_and_forgets() -> None:
    line = LineFit(1.0, 1.0)
    for x in [1, 2, 64, 512] * 50:
        line.add(x, 10 + 0.0463 * x)
    assert line.a == pytest.approx(10)
    assert line.b == pytest.approx(0.0463)
    for x in [1, 2, 64, 512] * 300:
        line.add(x, 3 + 0.5 * x)
    assert line.at(100) == pytest.approx(53, rel=0.01)


def test_a_line_of_one_size_keeps_its_slope() -> None:
    line = LineFit(0.0, 0.05)
    for _ in range(5):
        line.add(64, 13.2)
    assert line.at(64) == pytest.approx(13.2)
    assert line.b == 0.05


def test_the_link_follows_what_is_measured() -> None:
    costs = Costs()
    for _ in range(100):
        costs.copied(400, 0.004)
    assert costs.link == pytest.approx(100, rel=0.01)
    costs.copied(400, 0.0)
    assert costs.link == pytest.approx(100, rel=0.01)


def test_a_link_too_slow_for_a_page_is_tried_again() -> None:
    costs = Costs(LineFit(10.0, 0.05))
    for _ in range(60):
        costs.copied(1, 0.05)
        costs.computed(8, 0.01)
    assert TransferBudget(costs, 8, 16, 2048).storable == 0
    for _ in range(300):
        costs.computed(8, 0.01)
    assert TransferBudget(costs, 8, 16, 2048).storable > 0
    for _ in range(5000):
        costs.computed(8, 0.01)
    assert costs.link <= 25.0


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [(0, 1e-6), (8, 0.0), (8, -1.0), (8, float("nan")), (8, float("inf"))],
)  # fmt: skip
def test_what_says_nothing_is_not_learnt(tokens: int, seconds: float) -> None:
    costs = Costs()
    before = TransferBudget(costs, 100, 1, 10**6).storable
    for _ in range(50):
        costs.computed(tokens, seconds)
        if tokens:
            costs.copied(tokens, seconds)
    assert TransferBudget(costs, 100, 1, 10**6).storable == before


def test_small_copies_with_an_overhead_leave_the_link_as_it_was() -> None:
    costs = Costs()
    for _ in range(50):
        costs.copied(1, 0.2e-3 + 0.04e-3)
    assert costs.link == pytest.approx(25.0)
    for tokens in [1, 40, 400] * 50:
        costs.copied(tokens, 0.2e-3 + tokens * 0.01e-3)
    assert costs.link == pytest.approx(100, rel=0.01)
    assert costs.copy.a == pytest.approx(0.2, rel=0.05)
    costs.forward = LineFit(10.2, 0.0)
    assert costs.copyable(0) == pytest.approx(1000, rel=0.05), "the overhead counts"
