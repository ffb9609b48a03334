"""Rounds: contestants measured in turns, so that other work on the machine meets them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.serving.stats import median


class WrongAnswer(Exception):
    """A contestant gave another answer than the first, or asked for something else."""


@dataclass(frozen=True)
class Figure:
    """One quantity, a value for each round. ``limit``: what the median must not be ``above``, or
    else not below."""

    values: Sequence[float]
    limit: float | None = None
    above: bool = True

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def missed(self) -> bool:
        if self.limit is None:
            return False
        return self.median > self.limit if self.above else self.median < self.limit

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        places = 1 if self.median < 100 else 0
        return f"{self.median:.{places}f} ({low:.{places}f}-{high:.{places}f})"


@dataclass(frozen=True)
class Row:
    """A line of a table: what was measured, and its figures by column."""

    name: str
    figures: dict[str, Figure]


def take_turns(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; every second round in the opposite order.

    Raises WrongAnswer where what they return is not the same.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    expected = next(iter(contestants.values()))()
    for number in range(rounds):
        for name in list(contestants)[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            got = contestants[name]()
            seconds[name].append(time.perf_counter() - began)
            if got != expected:
                raise WrongAnswer(f"{name}: {got!r:.300} instead of {expected!r:.300}")
    return seconds


def table(rows: Sequence[Row]) -> str:
    """One line a row; the rows have the same columns."""
    columns = list(rows[0].figures)
    lines = [["", *columns]]
    lines += [[row.name, *(str(row.figures[name]) for name in columns)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))])
        for line in lines
    )
