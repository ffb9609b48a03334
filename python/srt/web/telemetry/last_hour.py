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
_LEAST = 1e-5  # seconds: shorter ones count as this
_STEP = math.log(1.1)  # a bucket's upper edge is 1.1 times its lower one
_LAST = 200  # the last bucket begins at half an hour


class CompletionTimes(NamedTuple):
    """Seconds of one completion from the request's arrival.

    Attributes:
        first: until its first token.
        token: from token to token, on average; None where there are fewer than two.
        whole: until its end.
    """

    first: float
    token: float | None
    whole: float


class LatencyCounts:
    """Durations, counted by their logarithm: a percentile is off by 5 % at most."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        bucket = int(math.log(max(seconds, _LEAST) / _LEAST) / _STEP)
        self.buckets[min(bucket, _LAST)] += 1

    def percentiles(self) -> dict[str, float]:
        """Seconds by name (p50, p95, p99); {} where nothing was counted."""
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
    """Counts of one minute; ``number`` is that of the monotonic clock."""

    number: int
    completions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    first: LatencyCounts = field(default_factory=LatencyCounts)
    token: LatencyCounts = field(default_factory=LatencyCounts)
    whole: LatencyCounts = field(default_factory=LatencyCounts)


class LastHour:
    """Minutes in which completions ended. One completion costs a few additions."""

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
        """Count a prompt, ``cached`` tokens of it found in the cache."""
        minute = self._now()
        minute.prompt_tokens += prompt
        minute.cached_tokens += cached

    def latency(self) -> dict[str, dict[str, float]]:
        """Percentiles of the hour, in seconds: of the first token, from token to token, and of
        whole completions."""
        found = {}
        for name in ("first", "token", "whole"):
            merged = LatencyCounts()
            for minute in self._recent():
                merged.buckets.update(getattr(minute, name).buckets)
            found[name] = merged.percentiles()
        return found

    def minutes(self) -> list[dict[str, float]]:
        """Counts of each minute in which something ended, ``ago`` minutes before this one."""
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
