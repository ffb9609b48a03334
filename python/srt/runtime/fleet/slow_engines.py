"""SlowEngines: which engines are given no requests for a while, because they are slower than the
others.

closed      the engine takes requests
open        it takes none until a moment, after which
half open   it takes one at a time, until ``TRIALS`` of them were answered as fast as elsewhere

Pure: moments are passed in. At most a third of the engines are open or half open, so that what is
wrong with all requests, or with the measure, does not close the fleet.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

SAMPLES = 16  # last requests that an engine is judged by
LEAST_SECONDS = 1.0  # a median below is not slow
SECONDS = 20.0  # the first exclusion takes so long, each further one twice that
MOST_SECONDS = 300.0
TRIALS = 3


@dataclass
class _Record:
    """Measurements of one engine.

    Attributes:
        delays: seconds to the first token of its last requests.
        until: moment at which its exclusion ends; 0 while it takes requests.
        strikes: exclusions that followed one another.
        well: moment at which the last exclusion was over.
        trials: requests still to be answered well, once the exclusion has ended.
        trying: the requests without a first token by which it is tried.
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
        """``factor``: 0 excludes none."""
        self._factor = factor
        self._records: dict[str, _Record] = {}
        self._numbers = itertools.count(1)
        self.exclusions = 0

    def excluded(self, now: float) -> frozenset[str]:
        """The engines that take no request at this moment."""
        return frozenset(
            name
            for name, record in self._records.items()
            if now < record.until or (record.trials and record.trying)
        )

    def sent(self, name: str, now: float) -> int:
        """Note a request to an engine; return its number, for ``answered`` and ``ended``."""
        record, number = self._records.get(name), next(self._numbers)
        if record is not None and record.trials and now >= record.until:
            record.trying.add(number)
        return number

    def answered(self, name: str, seconds: float, now: float, number: int) -> str:
        """Note the first token of a request, ``seconds`` after it was sent. Return the reason that
        the engine is excluded now; "" where it is not. Requests that the engine had when it was
        excluded say nothing more of it."""
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
        """Note that a request ended without a first token."""
        record = self._records.get(name)
        if record is not None:
            record.trying.discard(number)

    def keep(self, names: Collection[str]) -> None:
        """Forget all engines but these; those are known as if by no request where they are new."""
        self._records = {name: self._records.get(name) or _Record() for name in names}

    def _slow(self, seconds: float, usual: float) -> bool:
        return seconds > max(LEAST_SECONDS, self._factor * usual)

    def _usual(self, name: str) -> float | None:
        """The median of the other engines' medians; None where too little is known."""
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
