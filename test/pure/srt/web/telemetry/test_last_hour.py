"""Latencies and tokens of the last hour."""

from __future__ import annotations

import random

import pytest
from sglang.srt.web.telemetry.last_hour import CompletionTimes, LastHour, LatencyCounts


class Clock:
    def __init__(self) -> None:
        self.seconds = 6000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_percentiles_are_those_of_the_sorted_list() -> None:
    source = random.Random(7)
    durations = sorted(source.lognormvariate(-2, 1.5) for _ in range(5000))
    counts = LatencyCounts()
    for seconds in durations:
        counts.add(seconds)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        exact = durations[int(share * len(durations)) - 1]
        assert counts.percentiles()[name] == pytest.approx(exact, rel=0.06)


def test_durations_beyond_the_buckets_are_counted() -> None:
    counts = LatencyCounts()
    for seconds in (0.0, -1.0, 1e9):
        counts.add(seconds)
    assert counts.percentiles()["p50"] < 2e-5
    assert counts.percentiles()["p99"] > 1800
    assert LatencyCounts().percentiles() == {}


def test_minutes_are_apart_and_end_after_an_hour(clock: Clock) -> None:
    hour = LastHour(clock)
    hour.read(100, 60)
    hour.finished(CompletionTimes(0.1, 0.01, 1.0), 11)
    clock.seconds += 60
    hour.finished(CompletionTimes(0.4, None, 0.4), 1)
    old, new = hour.minutes()
    assert (old["ago"], new["ago"]) == (1, 0)
    assert (old["prompt_tokens"], old["cached_tokens"], old["generated_tokens"]) == (100, 60, 11)
    assert old["first_p50"] == pytest.approx(0.1, rel=0.06)
    assert hour.latency()["first"]["p99"] == pytest.approx(0.4, rel=0.06)
    assert hour.latency()["token"]["p50"] == pytest.approx(0.01, rel=0.06)
    clock.seconds += 59 * 60
    assert [minute["ago"] for minute in hour.minutes()] == [59]
    clock.seconds += 60
    assert hour.minutes() == []
    assert hour.latency() == {"first": {}, "token": {}, "whole": {}}


def test_old_minutes_take_no_memory(clock: Clock) -> None:
    hour = LastHour(clock)
    for _ in range(300):
        hour.finished(CompletionTimes(0.1, 0.01, 1.0), 2)
        clock.seconds += 60
    assert len(hour._minutes) <= 60
    clock.seconds -= 60
    assert len(hour.minutes()) == 60
