"""LastHour: latencies and tokens of the completions that ended in the last sixty minutes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MINUTES = 60
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_LEAST = 1e-5  # seconds; shorter durations count as this
_STEP = math.log(1.1)  # a bucket's upper edge is 1.1 times its lower edge
_LAST = 200  # index of the last bucket, which begins at half an hour


class CompletionTimes(NamedTuple):
    """Times of one completion, in seconds.

    Attributes:
        first: from the request's arrival to the first token.
        token: mean time between two tokens; None with fewer than two tokens.
        whole: from the request's arrival to the end.
    """

    first: float
    token: float | None
    whole: float


class LatencyCounts:
    """Histogram of durations with logarithmic buckets: a percentile's error is at most 5 %."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        bucket = int(math.log(max(seconds, _LEAST) / _LEAST) / _STEP)
        self.buckets[min(bucket, _LAST)] += 1

    def percentiles(self) -> dict[str, float]:
        """Return the percentiles in seconds by name (p50, p95, p99); {} without any durations."""
        total = self.buckets.total()
        found: dict[str, float] = {}
        for name, share in SHARES.items():
            left = share * total
            for bucket in sorted(self.buckets):
                left -= self.buckets[bucket]
                if left <= 0:
                    found[name] = _LEAST * math.exp((bucket + 0.5) * _STEP)
                    break
        return found


@dataclass
class Minute:
    """Counts of one minute. ``number``: minutes on the monotonic clock."""

    number: int
    completions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    first: LatencyCounts = field(default_factory=LatencyCounts)
    token: LatencyCounts = field(default_factory=LatencyCounts)
    whole: LatencyCounts = field(default_factory=LatencyCounts)


class LastHour:
    """Counts of the last sixty minutes. Counting a completion takes a few additions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._minutes: dict[int, Minute] = {}

    def finished(self, times: CompletionTimes, tokens: int) -> None:
        """Count a completion of ``tokens`` tokens."""
        minute = self._now()
        minute.completions += 1
        minute.generated_tokens += tokens
        minute.first.add(times.first)
        minute.whole.add(times.whole)
        if times.token is not None:
            minute.token.add(times.token)

    def read(self, prompt: int, cached: int) -> None:
        """Count a prompt of ``prompt`` tokens, of which ``cached`` were cached."""
        minute = self._now()
        minute.prompt_tokens += prompt
        minute.cached_tokens += cached

    def latency(self) -> dict[str, dict[str, float]]:
        """Return the percentiles of the hour, in seconds: of the time to the first token, between
        tokens, and of whole completions."""
        found = {}
        for name in ("first", "token", "whole"):
            merged = LatencyCounts()
            for minute in self._recent():
                merged.buckets.update(getattr(minute, name).buckets)
            found[name] = merged.percentiles()
        return found

    def minutes(self) -> list[dict[str, float]]:
        """Return the counts of each minute with a completion or prompt. ``ago``: minutes before the
        current one."""
        now = int(self._clock() // 60)
        return [
            {
                "ago": now - minute.number,
                "completions": minute.completions,
                "prompt_tokens": minute.prompt_tokens,
                "cached_tokens": minute.cached_tokens,
                "generated_tokens": minute.generated_tokens,
                **{f"first_{name}": at for name, at in minute.first.percentiles().items()},
            }
            for minute in self._recent()
        ]

    def _now(self) -> Minute:
        number = int(self._clock() // 60)
        if number not in self._minutes:
            self._minutes = {minute.number: minute for minute in self._recent()}
            self._minutes[number] = Minute(number)
        return self._minutes[number]

    def _recent(self) -> Iterator[Minute]:
        oldest = int(self._clock() // 60) - MINUTES
        return (minute for number, minute in self._minutes.items() if number > oldest)
