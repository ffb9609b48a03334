"""Checks of the text of a turn; the run that gives way where room is short."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")

from sglang.srt.inferlet.host.host_child import GuestHost, newest_of_greediest
from sglang.srt.inferlet.host.host_messages import (
    GuestImage,
    GuestLimits,
    GuestOver,
    LaunchGuest,
)
from sglang.srt.inferlet.host.residency import MOST_NESTED, LimitExceeded, Residency, check_calls

IMAGE = GuestImage("", False, "", "{}", b"")


def deep(levels: int, more: str = "") -> str:
    """A turn of so many lists and objects inside of each other."""
    return '[{"a":' + "[" * (levels - 2) + more + "]" * (levels - 2) + "}]"


@pytest.mark.parametrize("more", ["", '"[[[[{{"', r'"\\\"[[["', '"]]]]","\\\\",1'])
def test_levels_of_a_turn_are_limited(more: str) -> None:
    check_calls(deep(MOST_NESTED, more), GuestLimits())
    with pytest.raises(LimitExceeded, match=f"more than {MOST_NESTED} lists and objects") as caught:
        check_calls(deep(MOST_NESTED + 1, more), GuestLimits())
    assert caught.value.code == "malformed"


def test_brackets_side_by_side_or_in_a_text_are_no_levels() -> None:
    check_calls('[{"a":"' + "[" * 9999 + '"},{"b":[' + "[],{}," * 9999 + "[]]}]", GuestLimits())


def resident(run: int, tenant: str, memory: int) -> Residency:
    return Residency(LaunchGuest(run, IMAGE, GuestLimits(memory=memory), tenant=tenant))


def test_the_newest_run_of_the_tenant_that_claims_most_gives_way() -> None:
    runs = [resident(run, "ann", 10) for run in range(4)] + [resident(9, "bob", 30)]
    for found in (runs, runs[::-1]):
        chosen = newest_of_greediest(found, lambda one: one.limits.memory)
        assert chosen is not None
        assert chosen.run == 3
    chosen = newest_of_greediest([*runs[1:], resident(5, "bob", 1)], lambda one: one.limits.memory)
    assert chosen is not None
    assert chosen.run == 9
    assert newest_of_greediest([], lambda one: 1) is None


def test_a_run_that_ends_while_memory_is_short_costs_nothing() -> None:
    """The ticker, which looks at the memory, also holds all deadlines."""

    class Runs(dict[int, Any]):
        """The main thread forgets a run as soon as it was looked at."""

        def values(self) -> Any:
            found = tuple(super().values())
            self.clear()
            return found

        def __contains__(self, run: object) -> bool:
            return True

    host, dropped, reports = object.__new__(GuestHost), list[Residency](), list[GuestOver]()
    lane = type("Lane", (), {"drop": lambda self, resident: dropped.append(resident)})()
    one = resident(7, "ann", 10)
    host._memory, host._runs = 5, Runs({7: (lane, one)})
    host._report = reports.append  # type: ignore[method-assign, assignment]
    host._relieve()
    host._relieve()
    assert dropped == [one]
    assert [report.code for report in reports] == ["host_memory"]
