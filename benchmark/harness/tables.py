"""Tables: measurements of a benchmark, printed on the terminal and kept as lines of JSON."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmark.harness import records
from benchmark.harness.machine import about, heading


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
    names = list(rows[0].figures)
    cells = [[row.name, *(str(row.figures[name]) for name in names)] for row in rows]
    return columns([["", *names], *cells])


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells in columns as wide as their widest cell, all but the first to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))])
        for line in lines
    )


def told(tables: Mapping[str, Sequence[Row]], options: argparse.Namespace) -> int:
    """Print the tables and the limits that they miss; append them to ``options.output_file``, where
    there is one. The exit code: 1 where a limit is missed."""
    print(heading())
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
    common = about(options)
    for title, rows in tables.items():
        for row in rows:
            figures = {
                name: {"median": figure.median, "values": list(figure.values),
                       "limit": figure.limit}
                for name, figure in row.figures.items()
            }  # fmt: skip
            line = {"table": title, "row": row.name, "figures": figures, **common}
            records.append(options.output_file, line)
