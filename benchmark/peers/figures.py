"""Figures: the records of a run, looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmark.peers.work import WORKS

Record = dict[str, Any]
OURS, OURS_SMALL, OURS_HTTP = "ours", "ours int8", "ours HTTP"


@dataclass(frozen=True)
class Middle:
    """A median, the least and the most."""

    value: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Middle | None:
        """None of no values."""
        return Middle(median(values), min(values), max(values)) if values else None


class Figures:
    """Figures from ``records`` as they were written. Where a run was made twice, the later one
    counts."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self._runs: dict[tuple[str, str, str], dict[int, Record]] = {}
        self._checks: dict[tuple[str, str, str], Record] = {}
        for record in records:
            if record["kind"] in ("run", "check"):
                key = record["size"], record["work"], record["contender"]
                if record["kind"] == "check":
                    self._checks[key] = record
                elif record["round"] == 0:
                    self._runs[key] = {0: record}
                else:
                    self._runs.setdefault(key, {})[record["round"]] = record

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    @property
    def sizes(self) -> list[str]:
        return list(dict.fromkeys(size for size, _, _ in self._runs))

    def works(self, size: str) -> list[str]:
        there = {work for of, work, _ in self._runs if of == size}
        return [work for work in WORKS if work in there]

    def contenders(self, size: str) -> list[str]:
        return list(dict.fromkeys(name for of, _, name in self._runs if of == size))

    def runs(self, size: str, work: str, name: str) -> list[Record]:
        return list(self._runs.get((size, work, name), {}).values())

    def check(self, size: str, work: str, name: str) -> Record | None:
        return self._checks.get((size, work, name))

    def seconds(self, size: str, work: str, name: str) -> Middle | None:
        return Middle.of([run["seconds"] for run in self.runs(size, work, name)])

    def share(self, size: str, work: str, name: str) -> Middle | None:
        """Share of the roofline: least possible seconds over those it took."""
        runs = self.runs(size, work, name)
        return Middle.of([run["roofline"] / run["seconds"] for run in runs if run["roofline"]])

    def ratio(
        self, size: str, work: str, ours: str, theirs: str, of: str = "seconds"
    ) -> Middle | None:
        """Theirs over ours, in rounds that both ran: neighbours in time. ``of`` is a quantity of
        both runs."""
        mine, others = (self._runs.get((size, work, name), {}) for name in (ours, theirs))
        both = mine.keys() & others.keys()
        return Middle.of([others[r][of] / mine[r][of] for r in sorted(both)])

    def ttft(self, size: str, name: str, part: str) -> Middle | None:
        """Seconds to the first token in W5; ``part`` is "p50" or "p99"."""
        runs = self.runs(size, "W5", name)
        return Middle.of([run[f"ttft_{part}"] for run in runs if run[f"ttft_{part}"]])


def counterpart(name: str) -> str:
    """The side of ours that a contender is compared with: 8 bits with 8 bits, HTTP with HTTP."""
    if name.endswith("HTTP"):
        return OURS_HTTP
    return OURS_SMALL if name.endswith(("Q8_0", "int8")) else OURS
