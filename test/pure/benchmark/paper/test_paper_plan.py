"""A run's plan: shares of the time, parts that fail, fall short or are skipped; the registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from helpers.paths import ROOT
from hypothesis import given
from hypothesis import strategies as st

from benchmark.paper import claims
from benchmark.paper.plan import Part, Plan, Short


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def planned(
    works: list[tuple[float, Callable[[Clock, float], None]]], seconds: float
) -> tuple[list[str], list[dict[str, Any]], float]:
    """Run parts a, b, ...; return those that failed, the records, and the time of the end."""
    clock, told = Clock(), list[dict[str, Any]]()
    parts = [
        Part("abcdefgh"[i], weight, partial(work, clock)) for i, (weight, work) in enumerate(works)
    ]
    failed = Plan(parts, seconds, told.append, lambda line: None, clock).run()
    return failed, told, clock.now


def use(share: float) -> Callable[[Clock, float], None]:
    def work(clock: Clock, until: float) -> None:
        clock.now += share * (until - clock.now)

    return work


def budgets(told: list[dict[str, Any]]) -> list[float]:
    return [record["seconds"] for record in told if record["state"] == "begun"]


def test_what_a_part_leaves_over_goes_to_those_behind_it() -> None:
    _, told, end = planned([(1, use(0.0)), (1, use(1.0)), (2, use(1.0))], 120)
    assert budgets(told) == [30, 40, 80]
    assert end == 120


def test_what_a_part_overruns_is_taken_from_those_behind_it() -> None:
    _, told, end = planned([(1, use(2.0)), (1, use(1.0)), (2, use(1.0))], 120)
    assert budgets(told) == [30, 20, 40]
    assert end == 120


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1)), min_size=1, max_size=8),
    st.floats(1, 1e4),
)
def test_parts_that_keep_to_their_time_end_in_time(
    parts: list[tuple[float, float]], seconds: float
) -> None:
    _, told, end = planned([(weight, use(share)) for weight, share in parts], seconds)
    assert end <= seconds * (1 + 1e-9)
    assert all(budget >= 0 for budget in budgets(told))


def test_what_there_is_no_time_for_is_not_begun() -> None:
    failed, told, end = planned([(1, use(3.0)), (1, use(1.0)), (1, use(1.0))], 90)
    assert (failed, end) == ([], 90)
    assert [(r["part"], r["state"]) for r in told] == [
        ("a", "begun"), ("a", "complete"), ("b", "out of time"), ("c", "out of time"),
    ]  # fmt: skip
    assert told[-1]["why"] == "no time was left for it"


def test_no_part_keeps_the_next_from_running() -> None:
    def broken(clock: Clock, until: float) -> None:
        raise OSError("no such engine")

    def short(clock: Clock, until: float) -> None:
        raise Short("2 of 5 rounds")

    failed, told, _ = planned([(1, broken), (1, short), (1, use(1))], 40)
    assert failed == ["a"]
    ends = [(r["part"], r["state"], r["why"]) for r in told if r["state"] != "begun"]
    assert ends == [
        ("a", "failed", "OSError: no such engine"),
        ("b", "out of time", "2 of 5 rounds"),
        ("c", "complete", ""),
    ]


def test_the_registry_has_every_claim_there_is() -> None:
    there = {path.parent.name for path in (ROOT / "benchmark").glob("*/claim.py")}
    assert there - {"harness"} <= set(claims.NAMES)
    assert len(set(claims.NAMES)) == len(claims.NAMES)
    assert {claims.SEEING, claims.PAID, *claims.PARALLEL, *claims.ABLATED} <= set(claims.NAMES)


def test_a_claim_that_is_not_there_names_itself() -> None:
    with pytest.raises(claims.Broken, match=r"^nothing_such: ModuleNotFoundError"):
        claims.claim("nothing_such")


def test_a_claim_is_had_by_its_name() -> None:
    assert claims.claim("few_shot").name == "few_shot"
