"""Durations of calls: what is predicted from those seen, hints and the time elapsed."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.interception.durations import CALLS, PAIRS, SHORTEST, Durations

SECONDS = st.floats(1e-3, 1e5)
SEEN = st.lists(SECONDS, max_size=CALLS)
HINTS = st.one_of(st.just(0.0), SECONDS)


def learnt(seen: list[float], scale: float = 1.0) -> Durations:
    durations = Durations()
    for seconds in seen:
        durations.add("a", "t", seconds * scale)
    return durations


@given(SEEN, st.floats(0, 1e6), HINTS)
def test_remaining_lies_between_its_sources(seen: list[float], elapsed: float, hint: float) -> None:
    found = learnt(seen).remaining("a", "t", elapsed, hint)
    longer = [seconds - elapsed for seconds in seen if seconds > elapsed]
    sources = [elapsed, *longer, *([hint - elapsed] if hint > elapsed else [])]
    assert min(sources) * (1 - 1e-9) <= found <= max(sources) * (1 + 1e-9)


@given(SEEN, SECONDS, HINTS, st.floats(0.1, 10))
def test_remaining_has_no_unit_of_its_own(
    seen: list[float], elapsed: float, hint: float, scale: float
) -> None:
    """All times ten times as long, the estimate ten times as long."""
    times = [elapsed, hint, *seen]
    for i, one in enumerate(times):  # near ties fall apart when they are scaled
        if any(one != other and math.isclose(one, other, rel_tol=1e-6) for other in times[i + 1 :]):
            return
    one = learnt(seen).remaining("a", "t", elapsed, hint)
    scaled = learnt(seen, scale).remaining("a", "t", elapsed * scale, hint * scale)
    assert scaled == pytest.approx(one * scale, rel=1e-5)


@given(SECONDS)
def test_the_unknown_lasts_as_long_as_it_has(elapsed: float) -> None:
    durations = Durations()
    durations.add("another", "t", 5.0)
    durations.add("a", "another", 5.0)
    assert durations.remaining("a", "t", elapsed) == elapsed


@given(SECONDS, st.floats(0, 0.99))
def test_a_hint_alone_is_believed_until_overrun(hint: float, share: float) -> None:
    durations = Durations()
    assert durations.remaining("a", "t", hint * share, hint) == pytest.approx(hint * (1 - share))
    assert durations.remaining("a", "t", hint * 1.5, hint) == hint * 1.5


@given(SECONDS, st.integers(1, CALLS), st.floats(0, 0.99))
def test_a_constant_tool_is_known(seconds: float, count: int, share: float) -> None:
    found = learnt([seconds] * count).remaining("a", "t", seconds * share)
    assert found == pytest.approx(seconds * (1 - share))


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_wrong_hint_stops_to_matter(factor: float) -> None:
    off = []
    for count in (0, 1, 4, 16):
        found = learnt([2.0] * count).remaining("a", "t", 0.0, 2.0 * factor)
        off.append(abs(math.log(found / 2.0)))
    assert off[0] == pytest.approx(math.log(10))
    assert off == sorted(off, reverse=True)
    assert off[2] < math.log(1.3)
    assert off[3] < math.log(1.05)


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_the_estimate_beats_the_papers(factor: float) -> None:
    """Times of InferCept's table, hints right or wrong, in one sequence: the median error of the
    logarithm is at most half of that of the time elapsed."""
    r, durations = random.Random(1), Durations()
    tools = {"math": (9e-5, 6e-5), "qa": (0.69, 0.17), "ve": (0.09, 0.014), "chat": (28.6, 15.6)}
    ours: list[float] = []
    papers: list[float] = []
    for _ in range(1000):
        tool = r.choice(list(tools))
        seconds = max(1e-5, r.gauss(*tools[tool]))
        elapsed = seconds * r.uniform(0.01, 0.99)
        found = durations.remaining("a", tool, elapsed, seconds * factor)
        ours.append(abs(math.log(found / (seconds - elapsed))))
        papers.append(abs(math.log(elapsed / (seconds - elapsed))))
        durations.add("a", tool, seconds)
    assert statistics.median(ours) < 0.5 * statistics.median(papers)


def test_the_wait_for_a_call_that_never_returns_keeps_growing() -> None:
    durations = learnt([0.7, 0.5, 0.9] * 20)
    assert durations.remaining("a", "t", 0.6) < 0.3
    found = [durations.remaining("a", "t", elapsed, 0.7) for elapsed in (1.0, 10.0, 100.0)]
    assert found == [1.0, 10.0, 100.0]


def test_one_hung_call_among_many_changes_little() -> None:
    durations = learnt([0.7] * 60 + [600.0])
    assert durations.remaining("a", "t", 0.1) == pytest.approx(0.6, rel=1e-2)
    assert 1.0 < durations.remaining("a", "t", 1.0) < 100.0


def test_a_tool_that_often_hangs_is_known_for_it() -> None:
    durations = learnt([0.7] * 40 + [600.0] * 20)
    assert durations.remaining("a", "t", 0.1) == pytest.approx(0.6, rel=1e-2)
    assert durations.remaining("a", "t", 1.0) == pytest.approx(599.0, rel=0.3)


def test_old_calls_are_forgotten() -> None:
    durations = learnt([100.0] * 500 + [1.0] * (CALLS // 2 + 1))
    assert durations.remaining("a", "t", 0.0) == 1.0
    durations = learnt([100.0] * 500 + [1.0] * CALLS)
    assert durations.remaining("a", "t", 2.0) == 2.0


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(allow_nan=True), st.booleans()), max_size=60)
)
def test_memory_is_bounded(steps: list[tuple[int, float, bool]]) -> None:
    durations = Durations(pairs=4, calls=3)
    for tool, seconds, add in steps:
        if add:
            durations.add("a", str(tool), seconds)
        found = durations.remaining("a", str(tool), 1.0, seconds)
        assert 0 <= found < math.inf
        assert len(durations) <= 4
        assert all(
            len(calls) <= 3 and sorted(calls._last) == list(calls._sorted)
            for calls in durations._pairs.values()
        )


def test_the_pair_used_least_recently_goes_first() -> None:
    durations = Durations()
    for number in range(PAIRS):
        durations.add("a", str(number), 5.0)
    assert durations.remaining("a", "0", 1.0) == pytest.approx(4.0)
    durations.add("a", "new", 5.0)
    assert len(durations) == PAIRS
    assert durations.remaining("a", "0", 1.0) == pytest.approx(4.0)
    assert durations.remaining("a", "1", 1.0) == 1.0


def test_no_time_at_all_is_a_time() -> None:
    durations = learnt([0.0, 0.0])
    assert durations.remaining("a", "t", 0.0) == pytest.approx(SHORTEST)
    assert durations.remaining("a", "t", -1.0) == pytest.approx(SHORTEST)
