"""Plot: the paper's figures from our records, as SVG. Needs matplotlib.

Transparent, with grey text and lines and colours of middling lightness: to be read on white and on
black. The same records give the same file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from benchmark.paper.figures import OURS, Figures
from benchmark.paper.sections import ABLATION, CURVE, FULL
from benchmark.paper.speeds import SPEED

GREY = "#808890"
_COLOURS = ("#e0562b", "#3f7fd4", "#1f9e89", "#a86fd1", "#c29a20", "#d4588f", "#7a9a3a", "#8a8f98",
            "#4fb0c6")  # fmt: skip
Values = Mapping[str, Sequence[float | None]]


def draw(figures: Figures, folder: Path) -> dict[str, str]:
    """Every plot that has something to show, as ``evaluation-NAME.svg``: what each shows, by name.

    Raises ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, make in _PLOTS.items():
        if told := make(figures, folder / f"evaluation-{name}.svg"):
            found[name] = told
    return found


def _throughput(figures: Figures, path: Path) -> str:
    claims = figures.claims(SPEED)
    series = {
        side: [_middle(figures.ratio(SPEED, claim, "throughput", side)) for claim in claims]
        for side in _ours_first(figures.sides(SPEED, mode="throughput"))
    }
    return _bars(claims, series, "throughput, ours = 1", path)


def _latency(figures: Figures, path: Path) -> str:
    claims = figures.claims(SPEED, "latency")
    series = {
        side: [
            _middle(figures.ratio(SPEED, claim, "latency", side, OURS, "latency"))
            for claim in claims
        ]
        for side in _ours_first(figures.sides(SPEED, mode="latency"))
    }
    return _bars(claims, series, "latency, ours = 1 (log)", path, log=True)


def _ablations(figures: Figures, path: Path) -> str:
    claims = figures.claims(ABLATION)
    sides = figures.sides(ABLATION)
    series = {
        side: [
            _middle(figures.ratio(ABLATION, claim, "throughput", side, FULL)) for claim in claims
        ]
        for side in sorted(sides, key=lambda side: side != FULL)
    }
    return _bars(claims, series, "throughput, all on = 1", path)


def _hits(figures: Figures, path: Path) -> str:
    found = figures.hits()
    series: Values = {
        "achieved": [100 * record["achieved"] for record in found],
        "optimal": [100 * record["optimal"] for record in found],
    }
    return _bars([record["claim"] for record in found], series, "% of the prompt tokens", path)


def _curve(figures: Figures, path: Path) -> str:
    """Hit rate across; throughput and the latency of one alone."""
    claims = figures.claims(CURVE)
    if not claims:
        return ""
    panels = (("throughput", "rate", "items a second"), ("latency", "latency", "seconds an item"))
    canvas, axes = _canvas(1, len(panels), (8, 2.8))
    for axis, (mode, of, label) in zip(axes[0], panels):
        for claim, colour in zip(claims, _COLOURS):
            points = []
            for side in figures.sides(CURVE, claim, mode):
                value = figures.value(CURVE, claim, mode, side, of)
                hits = figures.value(CURVE, claim, mode, side, "hit_rate")
                if value and hits:
                    points.append((100 * hits.value, value.value))
            if points:
                axis.plot(*zip(*sorted(points)), marker="o", color=colour, label=claim)
        axis.set_xlabel("hit rate, %")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    _save(canvas, axes[0][0], path)
    return "Throughput and latency by hit rate"


_PLOTS = {
    "throughput": _throughput,
    "latency": _latency,
    "ablations": _ablations,
    "hits": _hits,
    "curve": _curve,
}


def _middle(found: Any) -> float | None:
    return found.value if found else None


def _ours_first(sides: Sequence[str]) -> list[str]:
    return sorted(sides, key=lambda side: side != OURS)


def _bars(labels: Sequence[str], series: Values, label: str, path: Path, log: bool = False) -> str:
    """A group of bars a label. What it shows, or "" where there is nothing."""
    if not labels or not any(value for values in series.values() for value in values):
        return ""
    canvas, axes = _canvas(1, 1, (max(7.0, 0.75 * len(labels) + 2), 3.4))
    axis, width = axes[0][0], 0.84 / len(series)
    for at, ((name, values), colour) in enumerate(zip(series.items(), _cycle(len(series)))):
        places = [x - 0.42 + (at + 0.5) * width for x in range(len(labels))]
        axis.bar(places, [nan if value is None else value for value in values], width,
                 color=colour, label=name)  # fmt: skip
    axis.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axis.set_ylabel(label)
    if log:
        axis.set_yscale("log")
    _save(canvas, axis, path)
    return label[:1].upper() + label[1:]


def _cycle(count: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(count)]


def _canvas(rows: int, columns: int, size: tuple[float, float]) -> Any:
    from matplotlib import pyplot

    pyplot.rcParams |= {
        "svg.hashsalt": "evaluation", "font.size": 9, "axes.spines.top": False,
        "axes.spines.right": False, "text.color": GREY, "axes.labelcolor": GREY,
        "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
        "svg.fonttype": "path",
    }  # fmt: skip
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False)


def _save(canvas: Any, legend: Any, path: Path) -> None:
    from matplotlib import pyplot

    for axis in canvas.axes:
        axis.yaxis.grid(True, alpha=0.3)
        axis.set_axisbelow(True)
    handles, names = legend.get_legend_handles_labels()
    canvas.tight_layout(rect=(0, 0, 1, 0.86))
    canvas.legend(handles, names, ncols=5, frameon=False, loc="upper left")
    canvas.savefig(path, metadata={"Date": None}, transparent=True)
    pyplot.close(canvas)
