"""Tables: measurements of a benchmark, printed on the terminal and kept as lines of JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from sglang.srt.commands.bench.stats import median

from benchmark.serving.report import environment


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


class Ratio(Figure):
    """A figure with two decimal places."""

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.values):.2f}-{max(self.values):.2f})"


@dataclass(frozen=True)
class Row:
    """A line of a table: what was measured, and its figures by column."""

    name: str
    figures: dict[str, Figure]


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


def told(tables: Mapping[str, Sequence[Row]], options: argparse.Namespace) -> int:
    """Print the tables and the limits that they miss; append them to ``options.output_file``, where
    there is one. The exit code: 1 where a limit is missed."""
    print(" ".join(f"{name}={value}" for name, value in environment().items()))
    for title, rows in tables.items():
        print(f"\n{title}\n{table(rows)}")
    if options.output_file:
        _write(tables, options)
    missed = [
        f"{title}, {row.name}: {name} is {figure}; the limit is {figure.limit:g}"
        for title, rows in tables.items()
        for row in rows
        for name, figure in row.figures.items()
        if figure.missed
    ]
    print("\n" + "\n".join([f"{len(missed)} limits missed", *missed]))
    return 1 if missed else 0


def _write(tables: Mapping[str, Sequence[Row]], options: argparse.Namespace) -> None:
    common = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "options": vars(options),
        "environment": environment(),
    }
    with open(options.output_file, "a", encoding="utf-8") as file:
        for title, rows in tables.items():
            for row in rows:
                figures = {
                    name: {"median": figure.median, "values": list(figure.values),
                           "limit": figure.limit}
                    for name, figure in row.figures.items()
                }  # fmt: skip
                line = {"table": title, "row": row.name, "figures": figures, **common}
                file.write(json.dumps(line) + "\n")
