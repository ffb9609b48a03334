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
from benchmark.paper.speeds import SPEED, title
from benchmark.peers.figures import Middle

GREY = "#808890"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # ticks of ratios on a logarithmic axis
MISSING = "×"  # mark in place of a bar that was not measured
COLOURS = ("#e0562b", "#3f7fd4", "#1f9e89", "#a86fd1", "#c29a20", "#d4588f", "#7a9a3a", "#8a8f98",
            "#4fb0c6")  # fmt: skip
Values = Mapping[str, Sequence[Middle | None]]


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
    return _ratios(figures, SPEED, "throughput, {} = 1", OURS, path)


def _latency(figures: Figures, path: Path) -> str:
    return _ratios(figures, SPEED, "latency, {} = 1 (log)", OURS, path, "latency")


def _ablations(figures: Figures, path: Path) -> str:
    return _ratios(figures, ABLATION, "throughput, all on = 1", FULL, path)


def _ratios(
    figures: Figures, table: str, label: str, base: str, path: Path, mode: str = "throughput"
) -> str:
    """All contenders over ``base``, claim by claim."""
    claims, of = figures.claims(table, mode), "latency" if mode == "latency" else "rate"
    series = {
        side: [figures.ratio(table, claim, mode, side, base, of) for claim in claims]
        for side in figures.sides(table, mode=mode)
        if side != base
    }
    labels = [short(title(figures, claim)) for claim in claims]
    return _bars(labels, series, label.format(base), path, base=base, log=mode == "latency")


def _hits(figures: Figures, path: Path) -> str:
    """Hits of a cache without bounds, and of ours with two sizes."""
    plenty = figures.hits()
    less = {record["claim"]: record for record in figures.hits(plenty=False)}
    series: Values = {
        "optimal": [_percent(record["optimal"]) for record in plenty],
        "memory for all": [_percent(record["achieved"]) for record in plenty],
        "for half of it": [
            _percent(less[record["claim"]]["achieved"]) if record["claim"] in less else None
            for record in plenty
        ],
    }
    labels = [short(title(figures, record["claim"])) for record in plenty]
    return _bars(labels, series, "hits, % of the prompt tokens", path)


def _percent(share: float) -> Middle:
    return Middle(100 * share, 100 * share, 100 * share)


def _curve(figures: Figures, path: Path) -> str:
    """Hit rate across; throughput, and what one alone takes to its end and to its first token."""
    claims = figures.claims(CURVE)
    if not claims:
        return ""
    panels = (("throughput", "rate", "items a second"), ("latency", "latency", "seconds an item"),
              ("latency", "first_token", "seconds to the first token"))  # fmt: skip
    canvas, axes = canvas_of(1, len(panels), (10, 2.8))
    for axis, (mode, of, label) in zip(axes[0], panels):
        for claim, colour in zip(claims, COLOURS):
            points = []
            for side in figures.sides(CURVE, claim, mode):
                value = figures.value(CURVE, claim, mode, side, of)
                hits = figures.value(CURVE, claim, mode, side, "hit_rate")
                if value and hits:
                    points.append((100 * hits.value, value))
            if points:
                places, values = zip(*sorted(points, key=lambda point: point[0]))
                axis.errorbar(places, [v.value for v in values], _spread(values), marker="o",
                              color=colour, ecolor=GREY, label=short(title(figures, claim)),
                              clip_on=False)  # fmt: skip
        axis.set_xlabel("hit rate, %")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    save(canvas, axes[0][0], path)
    return "Throughput, latency and time to the first token by hit rate"


_PLOTS = {
    "throughput": _throughput,
    "latency": _latency,
    "ablations": _ablations,
    "hits": _hits,
    "curve": _curve,
}


def short(name: str) -> str:
    """A claim's title for an axis: "JSON decoding by regex", "Tree of thought"."""
    return name.partition(" (")[0].replace("regular expression", "regex")


def _spread(values: Sequence[Middle | None]) -> tuple[list[float], list[float]]:
    """Distances from the median to the least and to the most of the rounds."""
    return (
        [value.value - value.least if value else nan for value in values],
        [value.most - value.value if value else nan for value in values],
    )


def _bars(
    labels: Sequence[str], series: Values, label: str, path: Path, *, base: str = "",
    log: bool = False,
) -> str:  # fmt: skip
    """A group of bars a label, with whiskers, and a line at 1 for ``base``. What it shows, or ""
    where there is nothing."""
    if not labels or not any(value for values in series.values() for value in values):
        return ""
    canvas, axes = canvas_of(1, 1, (max(7.0, 0.75 * len(labels) + 2), 4.2))
    axis, width = axes[0][0], 0.84 / len(series)
    start = 1.0 if log else 0.0  # a logarithmic axis has no 0 for bars to stand on
    for at, ((name, values), colour) in enumerate(zip(series.items(), _cycle(len(series)))):
        places = [x - 0.42 + (at + 0.5) * width for x in range(len(labels))]
        heights = [value.value - start if value else nan for value in values]
        axis.bar(places, heights, width, start, color=colour, label=name, yerr=_spread(values),
                 error_kw={"ecolor": GREY, "elinewidth": 0.8})  # fmt: skip
        for place, value in zip(places, values):
            if value is None:
                axis.annotate(MISSING, (place, start), ha="center", va="bottom", color=colour,
                              fontsize=7)  # fmt: skip
    axis.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axis.set_xlim(-0.6, len(labels) - 0.4)
    axis.set_ylabel(label)
    if base:
        axis.axhline(1, color=GREY, linewidth=1, linestyle="--", label=base)
    if log:
        _logarithmic(axis)
    save(canvas, axis, path)
    return label[:1].upper() + label[1:]


def _logarithmic(axis: Any) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(FixedLocator(TICKS))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter("{x:g}")


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def canvas_of(rows: int, columns: int, size: tuple[float, float]) -> Any:
    from matplotlib import pyplot

    pyplot.rcParams |= {
        "svg.hashsalt": "evaluation", "font.size": 9, "axes.spines.top": False,
        "axes.spines.right": False, "text.color": GREY, "axes.labelcolor": GREY,
        "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
        "svg.fonttype": "path",
    }  # fmt: skip
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False)


def save(canvas: Any, legend: Any, path: Path) -> None:
    from matplotlib import pyplot

    for axis in canvas.axes:
        axis.yaxis.grid(True, alpha=0.3)
        axis.set_axisbelow(True)
    handles, names = legend.get_legend_handles_labels()
    canvas.tight_layout(rect=(0, 0, 1, 0.86))
    canvas.legend(handles, names, ncols=5, frameon=False, loc="upper left")
    canvas.savefig(path, metadata={"Date": None}, transparent=True)
    pyplot.close(canvas)
