"""Plots of the arms and of the breakdown, in the style of ``benchmark/paper``. Need matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark.interception.records import Point, Record, mean, values
from benchmark.paper.plot import COLOURS, GREY, canvas_of, save

# Name of a number, its label, and whether its axis is logarithmic.
PANELS = (
    ("finished", "sessions finished a second", False),
    ("p50", "normalised latency, ms a token (log)", True),
    ("ttft", "first token, ms (log)", True),
)
BARS = (("p50", "normalised latency, ms a token (log)", 1.0), ("waste", "waste, %", 100.0))


def draw_arms(groups: Mapping[Point, list[Record]], arms: Sequence[str], path: Path) -> None:
    """Plot InferCept's Figure 2: the arms by rate, means over the seeds with the least and the
    most, a row of panels a workload. Raises ImportError without matplotlib."""
    workloads = list(dict.fromkeys(point.workload for point in groups))
    canvas, axes = canvas_of(len(workloads), len(PANELS), (11, 1.2 + 3.0 * len(workloads)))
    for line, workload in zip(axes, workloads):
        for axis, (name, label, log) in zip(line, PANELS):
            for arm, colour in zip(arms, _colours(len(arms))):
                points = sorted(
                    (point for point in groups if point[0] == workload and point.arm == arm),
                    key=lambda point: point.rate,
                )
                middles = [mean(groups[point], name) for point in points]
                low = [m - min(values(groups[p], name)) for p, m in zip(points, middles)]
                high = [max(values(groups[p], name)) - m for p, m in zip(points, middles)]
                axis.errorbar([point.rate for point in points], middles, (low, high), marker="o",
                              markersize=3, color=colour, ecolor=GREY, label=arm)  # fmt: skip
            axis.set_xlabel(f"{workload}: sessions a second")
            axis.set_ylabel(label)
            if log:
                axis.set_yscale("log")
            else:
                axis.set_ylim(bottom=0)
    save(canvas, axes[0][0], path)


def draw_steps(groups: Mapping[Point, list[Record]], steps: Sequence[str], path: Path) -> None:
    """Plot InferCept's Figure 3: a group of bars a step, one bar a rate. Raises ImportError without
    matplotlib."""
    rates = sorted({point.rate for point in groups})
    canvas, axes = canvas_of(1, len(BARS), (11, 4.2))
    for axis, (name, label, factor) in zip(axes[0], BARS):
        width = 0.84 / len(rates)
        for at, (rate, colour) in enumerate(zip(rates, COLOURS)):
            found = {point.arm: mean(records, name) for point, records in groups.items()
                     if point.rate == rate}  # fmt: skip
            places = [x - 0.42 + (at + 0.5) * width for x in range(len(steps))]
            heights = [factor * found.get(step, float("nan")) for step in steps]
            axis.bar(places, heights, width, color=colour, label=f"{rate:g} sessions/s")
        axis.set_xticks(range(len(steps)), steps, rotation=40, ha="right")
        axis.set_ylabel(label)
        if "log" in label:
            axis.set_yscale("log")
    save(canvas, axes[0][0], path)


def _colours(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
