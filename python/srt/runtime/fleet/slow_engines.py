"""SlowEngines: a circuit breaker that excludes engines that are slower than the others.

closed      the engine takes requests
open        the engine takes no requests until its exclusion ends
half open   the engine takes one request at a time, until ``TRIALS`` of them were answered as fast
            as elsewhere

The module is pure: moments are arguments. At most a third of the engines are open or half open. So
a problem of all requests, or of the measurement, does not stop the fleet.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

SAMPLES = 16  # number of recent requests in an engine's median
LEAST_SECONDS = 1.0  # an engine with a smaller median is not slow
SECONDS = 20.0  # length of the first exclusion; each further one is twice as long
MOST_SECONDS = 300.0
TRIALS = 3


@dataclass
class _Record:
    """Measurements of one engine.

    Attributes:
        delays: seconds to the first token of the last requests.
        until: moment at which the exclusion ends; 0 while the engine takes requests.
        strikes: number of successive exclusions.
        well: moment at which the engine was last closed again.
        trials: number of requests that must still be answered fast after the exclusion.
        trying: trial requests without a first token.
    """

    delays: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    until: float = 0.0
    strikes: int = 0
    well: float = 0.0
    trials: int = 0
    trying: set[int] = field(default_factory=set)


class SlowEngines:
    """Excludes an engine whose median delay is ``factor`` times the median of the others'."""

    def __init__(self, factor: float) -> None:
        """``factor``: 0 excludes no engine."""
        self._factor = factor
        self._records: dict[str, _Record] = {}
        self._numbers = itertools.count(1)
        self.exclusions = 0

    def excluded(self, now: float) -> frozenset[str]:
        """Return the names of the engines that take no request at this moment."""
        return frozenset(
            name
            for name, record in self._records.items()
            if now < record.until or (record.trials and record.trying)
        )

    def sent(self, name: str, now: float) -> int:
        """Record a request to an engine. Return its number, for ``answered`` and ``ended``."""
        record, number = self._records.get(name), next(self._numbers)
        if record is not None and record.trials and now >= record.until:
            record.trying.add(number)
        return number

    def answered(self, name: str, seconds: float, now: float, number: int) -> str:
        """Record the first token of a request, ``seconds`` after the request was sent. Return the
        reason if the engine is excluded now, otherwise "". Requests that were sent to the engine
        before its exclusion are ignored."""
        record = self._records.get(name)
        if record is None:
            return ""
        if record.trials:
            if number not in record.trying:
                return ""
            record.trying.discard(number)
            usual = self._usual(name)
            if usual is None or not self._slow(seconds, usual):
                record.trials -= 1
                if not record.trials:
                    record.until, record.well = 0.0, now
                    record.delays.clear()
                return ""
            return self._exclude(name, record, seconds, usual, now)
        record.delays.append(seconds)
        usual = self._usual(name)
        if usual is None or len(record.delays) < SAMPLES:
            return ""
        found = median(record.delays)
        if not self._slow(found, usual) or not self._may_exclude():
            return ""
        return self._exclude(name, record, found, usual, now)

    def ended(self, name: str, number: int) -> None:
        """Record that a request ended without a first token."""
        record = self._records.get(name)
        if record is not None:
            record.trying.discard(number)

    def keep(self, names: Collection[str]) -> None:
        """Forget all engines but ``names``, and add empty records for new ones."""
        self._records = {name: self._records.get(name) or _Record() for name in names}

    def _slow(self, seconds: float, usual: float) -> bool:
        return seconds > max(LEAST_SECONDS, self._factor * usual)

    def _usual(self, name: str) -> float | None:
        """Return the median of the other engines' medians; None if there are too few samples."""
        others = [
            median(record.delays)
            for other, record in self._records.items()
            if other != name and len(record.delays) == SAMPLES and not record.trials
        ]
        return median(others) if others and self._factor else None

    def _may_exclude(self) -> bool:
        out = sum(bool(record.trials) for record in self._records.values())
        return 3 * (out + 1) <= len(self._records)

    def _exclude(self, name: str, record: _Record, seconds: float, usual: float, now: float) -> str:
        if not record.trials and now - record.well > MOST_SECONDS:
            record.strikes = 0
        pause = min(SECONDS * 2**record.strikes, MOST_SECONDS)
        record.strikes, record.trials = record.strikes + 1, TRIALS
        record.until = now + pause
        record.trying.clear()
        record.delays.clear()
        self.exclusions += 1
        return (
            f"engine {name} took {seconds:.2f} s to the first token, others {usual:.2f} s; it gets "
            f"no requests for {pause:.0f} s (--slow-engine-factor {self._factor:g})"
        )
