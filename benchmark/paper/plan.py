"""Plan: parts of a run one after the other, each with its share of the time that is left.

A part gets ``left x weight / weights of itself and all after it``. So what one leaves over goes to
those behind it, and what one overruns is taken from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
COMPLETE, SHORT, FAILED = "complete", "out of time", "failed"


class Short(Exception):
    """The time of a part was over before all its rounds; the text says what was left out."""


@dataclass(frozen=True)
class Part:
    """``work`` gets the moment (``time.monotonic``) at which to stop, at the next end of a round.
    ``weight`` is its share of the time, relative to the other parts."""

    name: str
    weight: float
    work: Callable[[float], None]


class Plan:
    """Plan of ``seconds`` in all, by ``clock``. ``tell`` takes records, ``say`` a line for the
    user."""

    def __init__(
        self, parts: Sequence[Part], seconds: float, tell: Callable[[Record], None],
        say: Callable[[str], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.parts, self._tell, self._say, self._clock = list(parts), tell, say, clock
        self._end = clock() + seconds

    def budget(self, at: int) -> float:
        """Seconds of the part with this index, if it began now."""
        behind = sum(part.weight for part in self.parts[at:])
        return max(0.0, self._end - self._clock()) * self.parts[at].weight / behind

    def run(self) -> list[str]:
        """Every part that there is time for; none keeps the next from running. The names of those
        that failed."""
        failed = []
        for at, part in enumerate(self.parts):
            seconds, began = self.budget(at), self._clock()
            if seconds <= 0:
                self._end_of(part, SHORT, "no time was left for it", 0.0)
                continue
            self._say(f"{part.name}: {seconds:.0f} s")
            self._tell({"kind": "part", "part": part.name, "state": "begun", "seconds": seconds})
            state, why = _tried(part, began + seconds)
            self._end_of(part, state, why, self._clock() - began)
            if state == FAILED:
                failed.append(part.name)
        return failed

    def _end_of(self, part: Part, state: str, why: str, seconds: float) -> None:
        self._tell({"kind": "part", "part": part.name, "state": state, "why": why,
                    "seconds": round(seconds, 1)})  # fmt: skip
        self._say(f"{part.name}: {state} in {seconds:.0f} s" + (f": {why}" if why else ""))


def _tried(part: Part, until: float) -> tuple[str, str]:
    """The state that the part ended in, and why."""
    try:
        part.work(until)
    except Short as short:
        return SHORT, str(short)
    except Exception as error:
        # An error of one part leaves the others worth their time.
        return FAILED, f"{type(error).__name__}: {error}"
    return COMPLETE, ""
