"""Records: runs of the arms as plain data, in tables and as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmark.harness.records import append as append_line
from benchmark.harness.records import read as read_lines
from benchmark.interception.session_run import Outcome

MIXED = "mixed"
COLUMNS = ("done/s", "", "p50", "", "p90", "first", "again", "waste", "moved", "stall")


class Point(NamedTuple):
    """One measurement: workload, rate and arm, whatever the seed.

    Attributes:
        workload: a name of ``WORKLOADS``, or ``MIXED``.
        rate: sessions a second.
        lost: share of the sessions whose last call never returns.
    """

    workload: str
    rate: float
    arm: str
    lost: float = 0.0


@dataclass(frozen=True)
class Record:
    """One run. The numbers are those of ``Outcome``; ``again`` and ``moved``: tokens computed again
    and tokens copied, a finished session."""

    workload: str
    rate: float
    arm: str
    lost: float
    seed: int
    seconds: float
    finished: float
    p50: float
    p90: float
    ttft: float
    waste: float
    stall: float
    again: float
    moved: float

    @property
    def point(self) -> Point:
        return Point(self.workload, self.rate, self.arm, self.lost)


def record(point: Point, seed: int, seconds: float, outcome: Outcome) -> Record:
    """Make the record of a run."""
    sessions = max(outcome.finished * seconds, 1)
    return Record(
        *point[:3], point.lost, seed, seconds, outcome.finished, outcome.p50, outcome.p90,
        outcome.ttft, outcome.waste, outcome.stall, outcome.recomputed / sessions,
        (outcome.stored + outcome.loaded) / sessions,
    )  # fmt: skip


def grouped(records: Iterable[Record]) -> dict[Point, list[Record]]:
    """Return the records of each point, the seeds together."""
    found: dict[Point, list[Record]] = {}
    for each in records:
        found.setdefault(each.point, []).append(each)
    return found


def values(records: Sequence[Record], name: str) -> list[float]:
    """Return a number of each record."""
    return [getattr(each, name) for each in records]


def mean(records: Sequence[Record], name: str) -> float:
    """Return the mean of a number over the seeds."""
    return fmean(values(records, name))


def heading() -> str:
    """The columns' names, above ``row``."""
    widths = (8, 12, 8, 14, 8, 8, 8, 8, 8, 8)
    names = " ".join(f"{name:>{width}}" for name, width in zip(COLUMNS, widths))
    return f"{'load':<6} {'rate':>4} {'arm':<18} {names}"


def row(records: Sequence[Record]) -> str:
    """The line of a point: means, and for two numbers the least and the most of the seeds."""
    first = records[0]
    done, p50 = values(records, "finished"), values(records, "p50")
    spread = [f"({min(done):.2f}-{max(done):.2f})", f"({min(p50):.1f}-{max(p50):.1f})"]
    if len(records) == 1:
        spread = ["", ""]
    return (
        f"{first.workload:<6} {first.rate:>4g} {first.arm:<18} {mean(records, 'finished'):>8.2f} "
        f"{spread[0]:>12} {mean(records, 'p50'):>8.1f} {spread[1]:>14} "
        f"{mean(records, 'p90'):>8.1f} {mean(records, 'ttft'):>8.0f} {mean(records, 'again'):>8.0f}"
        f" {mean(records, 'waste'):>8.2%} {mean(records, 'moved'):>8.0f} "
        f"{mean(records, 'stall'):>8.2%}"
    )


def append(path: Path, each: Record) -> None:
    """Append a record to a file, as a line of JSON."""
    append_line(path, asdict(each))


def read(path: Path) -> list[Record]:
    """Read the records of a file. Raises ValueError or TypeError for a line that is none."""
    return [Record(**found) for found in read_lines(path)]
