"""Engines that are slower than the others take no requests for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.runtime.fleet.slow_engines import SAMPLES, SECONDS, TRIALS, SlowEngines

NAMES = ["0", "1", "2"]


def measured(slow: SlowEngines, delays: dict[str, float], now: float = 0.0) -> list[str]:
    """Reasons after as many requests as an engine is judged by."""
    reasons = []
    for _ in range(SAMPLES):
        for name, seconds in delays.items():
            slow.sent(name, now)
            reasons.append(slow.answered(name, seconds, now))
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
        slow.sent("2", SECONDS)
        assert slow.excluded(SECONDS) == {"2"}
        assert not slow.answered("2", 0.5, SECONDS)
    slow.sent("2", SECONDS)
    assert not slow.excluded(SECONDS), "it takes requests as before"


def test_an_engine_that_is_still_slow_rests_for_longer() -> None:
    slow = fleet()
    measured(slow, {"0": 0.5, "1": 0.6, "2": 6.0})
    slow.sent("2", SECONDS)
    assert "for 40 s" in slow.answered("2", 7.0, SECONDS)
    assert slow.excluded(3 * SECONDS - 1) == {"2"}
    assert not slow.excluded(3 * SECONDS)
    slow.sent("2", 3 * SECONDS)
    slow.ended("2")  # aborted: another may try
    assert not slow.excluded(3 * SECONDS)


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
            slow.sent(name, now)
            slow.answered(name, seconds, now)
        assert 3 * len(slow.excluded(now)) <= count
