"""Engines that are slower than the others take no requests for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.runtime.fleet.slow_engines import (
    MOST_SECONDS,
    SAMPLES,
    SECONDS,
    TRIALS,
    SlowEngines,
)

NAMES = ["0", "1", "2"]


def measured(slow: SlowEngines, delays: dict[str, float], now: float = 0.0) -> list[str]:
    """Reasons after as many requests as an engine is judged by."""
    reasons = []
    for _ in range(SAMPLES):
        for name, seconds in delays.items():
            reasons.append(slow.answered(name, seconds, now, slow.sent(name, now)))
    return [reason for reason in reasons if reason]


def fleet(factor: float = 5.0, names: list[str] = NAMES) -> SlowEngines:
    slow = SlowEngines(factor)
    slow.keep(names)
    return slow


def test_a_slow_engine_rests_and_comes_back() -> None:
    slow = fleet()
    (reason,) = measured(slow, {"0": 0.5, "1": 0.6, "2": 6.0})
    assert "engine 2 took 6.00 s to the first token, others 0.55 s" in reason
    assert "for 20 s (--slow-engine-factor 5)" in reason
    assert slow.excluded(SECONDS - 1) == {"2"}
    for _ in range(TRIALS):
        assert not slow.excluded(SECONDS), "one request at a time"
        number = slow.sent("2", SECONDS)
        assert slow.excluded(SECONDS) == {"2"}
        assert not slow.answered("2", 0.5, SECONDS, number)
    slow.sent("2", SECONDS)
    assert not slow.excluded(SECONDS), "it takes requests as before"


def test_an_engine_that_is_still_slow_rests_for_longer() -> None:
    slow = fleet()
    measured(slow, {"0": 0.5, "1": 0.6, "2": 6.0})
    assert "for 40 s" in slow.answered("2", 7.0, SECONDS, slow.sent("2", SECONDS))
    assert slow.excluded(3 * SECONDS - 1) == {"2"}
    assert not slow.excluded(3 * SECONDS)
    slow.ended("2", slow.sent("2", 3 * SECONDS))  # aborted: another may try
    assert not slow.excluded(3 * SECONDS)


def test_requests_of_before_an_exclusion_are_no_trials() -> None:
    slow = fleet()
    before = [slow.sent("2", 0.0) for _ in range(8)]
    measured(slow, {"0": 0.5, "1": 0.6, "2": 6.0})
    for number in before[:4]:
        assert not slow.answered("2", 9.0, 1.0, number)
    assert slow.exclusions == 1
    assert slow.excluded(SECONDS - 1) == {"2"}, "for as long as was said"
    slow.answered("2", 0.5, 1.0, before[4])
    trial = slow.sent("2", SECONDS)
    slow.answered("2", 0.5, SECONDS, before[5])
    slow.ended("2", before[6])
    assert slow.excluded(SECONDS) == {"2"}, "one trial at a time"
    slow.answered("2", 0.5, SECONDS, trial)
    for _ in range(TRIALS - 1):
        number = slow.sent("2", SECONDS)
        assert slow.excluded(SECONDS) == {"2"}, "each trial is one request"
        slow.answered("2", 0.5, SECONDS, number)
    slow.sent("2", SECONDS)
    assert not slow.excluded(SECONDS)


def test_an_engine_that_was_well_for_long_rests_briefly() -> None:
    slow, now = fleet(), 0.0
    for later, pause in ((MOST_SECONDS, 20), (MOST_SECONDS + 1, 40), (0.0, 20)):
        (reason,) = measured(slow, {"0": 0.5, "1": 0.6, "2": 6.0}, now)
        assert f"for {pause} s" in reason
        now += pause
        for _ in range(TRIALS):
            slow.answered("2", 0.5, now, slow.sent("2", now))
        now += later


def test_what_is_slow_everywhere_or_fast_enough_excludes_none() -> None:
    assert not measured(fleet(), dict.fromkeys(NAMES, 60.0))
    assert not measured(fleet(), {"0": 0.01, "1": 0.01, "2": 0.9}), "below a second"
    assert not measured(fleet(0.0), {"0": 0.5, "1": 0.6, "2": 60.0})
    assert not measured(fleet(names=["0", "1"]), {"0": 0.5, "1": 60.0}), "half of the engines"


def test_another_engine_of_the_name_begins_anew() -> None:
    slow = fleet()
    measured(slow, {"0": 0.5, "1": 0.6, "2": 6.0})
    slow.keep(["0", "1"])
    slow.keep(NAMES)
    assert not slow.excluded(1.0)
    measured(slow, {"2": 6.0}, 1.0)
    slow.keep(["0", "1"])
    assert not slow.excluded(1.0)


@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 8), st.floats(0, 100), st.floats(0, 5)), max_size=400),
)
def test_at_most_a_third_is_excluded(count: int, steps: list[tuple[int, float, float]]) -> None:
    names = [str(number) for number in range(count)]
    slow, now = fleet(1.5, names), 0.0
    for index, seconds, later in steps:
        name, now = names[index % count], now + later
        if name not in slow.excluded(now):
            slow.answered(name, seconds, now, slow.sent(name, now))
        assert 3 * len(slow.excluded(now)) <= count
