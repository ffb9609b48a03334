"""Fault plan: which fault is made when, from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

FAULTS = {
    "kill": "SIGKILL to the process of an engine",
    "stop": "SIGSTOP to it, so that it answers nothing any more",
    "cut": "every connection between the clients and the server ends at once",
    "squeeze": "long requests of others fill the KV cache for some seconds",
}
"""Kinds of faults, and what each does."""
MIN_SECONDS = 0.5  # between two faults
SQUEEZE_SECONDS = (2.0, 6.0)
SQUEEZE_REQUESTS = (2, 8)


@dataclass(frozen=True)
class PlannedFault:
    """One fault.

    Attributes:
        at: seconds after the begin.
        kind: a name of ``FAULTS``.
        seconds: how long a squeeze lasts; 0 for others.
        pick: which process or how many requests; a number in [0, 1).
    """

    at: float
    kind: str
    seconds: float = 0.0
    pick: float = 0.0

    @property
    def requests(self) -> int:
        """Requests of a squeeze."""
        least, most = SQUEEZE_REQUESTS
        return least + int(self.pick * (most - least + 1))


def fault_plan(seed: int, seconds: float, every: float, kinds: Sequence[str]) -> list[PlannedFault]:
    """Faults within ``seconds``, with ``every`` seconds between two in the mean (exponential, at
    least 0.5). Every kind comes once before one comes twice, and so on. The same arguments give
    the same plan. Raises ValueError."""
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise ValueError(f"fault {unknown[0]!r} is unknown; there are {', '.join(FAULTS)}")
    if not kinds:
        raise ValueError(f"no fault is left; name some of {', '.join(FAULTS)}")
    if not 0 < seconds <= 7 * 86400:
        raise ValueError(f"the run has {seconds:g} seconds; give more than 0 and at most a week")
    if not every >= MIN_SECONDS:
        raise ValueError(f"faults come every {every:g} seconds; give at least {MIN_SECONDS:g}")
    chance = random.Random(f"{seed}/faults")
    found: list[PlannedFault] = []
    round_: list[str] = []
    at = 0.0
    while True:
        at += max(MIN_SECONDS, chance.expovariate(1 / every))
        if at >= seconds:
            return found
        if not round_:
            round_ = chance.sample(list(kinds), len(kinds))
        kind = round_.pop()
        lasts = chance.uniform(*SQUEEZE_SECONDS) if kind == "squeeze" else 0.0
        found.append(PlannedFault(round(at, 3), kind, round(lasts, 3), chance.random()))
