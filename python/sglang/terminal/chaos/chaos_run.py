"""Chaos run: clients that do the work again and again while the faults of a plan are made."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang.errors import BackendError, SglangError
from sglang.terminal.chaos.chaos_work import ChaosWork
from sglang.terminal.chaos.fault_plan import PlannedFault

END_SECONDS = 300.0  # after the end of the run, until every piece must have ended
AGAIN_SECONDS = 0.5
FOR_THE_MOMENT = (429, 503)  # statuses of a refusal that is no answer
KEPT = 20  # failures that are kept whole
RIGHT, OTHER, FAILED, NEVER = "right answer", "another answer", "failed", "never ended"
LOST = (OTHER, FAILED, NEVER)


class FaultSite(Protocol):
    """A server to which faults are done."""

    backend: Any

    def hit(self, fault: PlannedFault) -> None: ...


@dataclass
class Tally:
    """Counts of the ends of pieces of work.

    Attributes:
        ends: number of pieces by the way they ended.
        failures: the first ones that were lost: number, way, error, expected and found text.
        again: times that a piece was refused for the moment and sent again.
        compared: whether answers are compared: two quiet runs gave the same.
    """

    ends: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    again: int = 0
    compared: bool = True

    @property
    def lost(self) -> int:
        return sum(self.ends[way] for way in LOST)

    def add(self, number: int, way: str, expected: str, found: str = "", error: str = "") -> None:
        """Count a piece."""
        self.ends[way] += 1
        if way in LOST and len(self.failures) < KEPT:
            self.failures.append(
                {"piece": number, "way": way, "error": error, "expected": expected, "found": found}
            )


class ChaosRun:
    """One run. ``clients`` pieces of work run at a time."""

    def __init__(
        self, work: ChaosWork, stage: FaultSite, clients: int, tell: Callable[[str], None]
    ) -> None:
        self._work, self._stage, self._clients, self._tell = work, stage, clients, tell
        self.tally = Tally()
        self._expected: list[str] = []
        self._lock = threading.Lock()
        self._next, self._over = 0, threading.Event()
        self._open: dict[int, int] = {}  # piece of each client that has one

    def run(self, faults: Sequence[PlannedFault], seconds: float) -> Tally:
        """Learn the right answers quietly, then work for ``seconds`` under the faults. Raises
        SglangError where the quiet work fails."""
        self._learn()
        threads = [
            threading.Thread(target=self._client, args=(i,), name=f"chaos-{i}", daemon=True)
            for i in range(self._clients)
        ]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for fault in faults:
            if self._over.wait(max(0.0, begin + fault.at - time.monotonic())):
                break
            self._tell(f"{time.monotonic() - begin:6.1f} s  {fault.kind}")
            self._stage.hit(fault)
        self._over.wait(max(0.0, begin + seconds - time.monotonic()))
        self._over.set()
        deadline = time.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            for number in self._open.values():
                self.tally.add(number, NEVER, self._expected[number % self._work.pieces])
            self._open.clear()
        return self.tally

    def once(self, expected: Mapping[int, str]) -> Tally:
        """Do each piece once, without a fault. ``expected``: answers of pieces, where known."""
        for number in range(self._work.pieces):
            wanted, found, error, way = expected.get(number), "", "", RIGHT
            try:
                found = self._done(number)
                way = RIGHT if wanted in (None, found) else OTHER
            except Exception as fault:  # a program may raise anything
                way, error = FAILED, f"{type(fault).__name__}: {fault}"
            self.tally.add(number, way, wanted or "", found, error)
        return self.tally

    def _learn(self) -> None:
        pieces = range(self._work.pieces)
        self._expected = [self._work.do(self._stage.backend, i) for i in pieces]
        again = [self._work.do(self._stage.backend, i) for i in pieces]
        self.tally.compared = again == self._expected

    def _client(self, own: int) -> None:
        while not self._over.is_set():
            with self._lock:
                number, self._next = self._next, self._next + 1
                self._open[own] = number
            expected, found, error = self._expected[number % self._work.pieces], "", ""
            try:
                found = self._done(number)
                right = found == expected or not self.tally.compared
                way = RIGHT if right else OTHER
            except Exception as fault:  # a program's own error counts as well
                way, error = FAILED, f"{type(fault).__name__}: {fault}"
            with self._lock:
                if self._open.pop(own, None) is not None:
                    self.tally.add(number, way, expected, found, error)

    def _done(self, number: int) -> str:
        """The answer of a piece. One that the server refuses for the moment, as while an engine is
        started again (503 with Retry-After), is sent again, as every client of an API does."""
        until = time.monotonic() + END_SECONDS
        while True:
            try:
                return self._work.do(self._stage.backend, number)
            except SglangError as error:
                if status_of(error) not in FOR_THE_MOMENT or time.monotonic() > until:
                    raise
            with self._lock:
                self.tally.again += 1
            time.sleep(AGAIN_SECONDS)


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status of an error or of what caused it."""
    while error is not None:
        if isinstance(error, BackendError):
            return error.status
        error = error.__cause__
    return None
