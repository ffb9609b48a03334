"""Stall: the engine's process lives, and the steps of its loop do not come."""

from __future__ import annotations

from sglang.srt.core.progress import PASS, STAGES, Progress


class Stall:
    """Looks at the progress of a loop, again and again, ``interval`` seconds apart.

    Time is counted in looks: where this process was stopped or late too, nothing is held against
    the other. A forward pass may be long, so it does not count; it is the watchdog's.
    """

    def __init__(self, progress: Progress, interval: float, seconds: float) -> None:
        self._progress = progress
        self._interval, self._seconds = interval, seconds
        self._turn, self._stage, self._request = progress.read()
        self._looks = 0  # in this turn, none of them in a forward pass

    def look(self) -> bool:
        """Whether one turn has been at work for ``seconds`` outside of its forward pass."""
        turn, self._stage, self._request = self._progress.read()
        if turn != self._turn:
            self._turn, self._looks = turn, 0
        if self._stage != PASS:
            self._looks += 1
        return self._looks * self._interval > self._seconds

    @property
    def request(self) -> int:
        """The request that the loop worked for at the last look; 0: none in particular."""
        return self._request

    @property
    def stage(self) -> str:
        return STAGES[self._stage] if self._stage < len(STAGES) else f"stage {self._stage}"
