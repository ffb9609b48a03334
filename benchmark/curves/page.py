"""Page: samples as a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmark.curves.measure import CURVES, Sample
from benchmark.harness.page import put, table

NAME = "curves"
PLOT = Path("images") / "curves.svg"


def markdown(about: Mapping[str, Any], samples: Sequence[Sample]) -> str:
    parts = [
        f"{about['time'][:10]}, {about['machine']}, {about['cores']} cores, load "
        f"{about['load'][0]} at the beginning, commit {about['commit']}:\n\n"
        f"    python -m benchmark.curves {about['command']}"
    ]
    for curve, title in CURVES.items():
        points = grouped(samples, curve)
        if not points:
            continue
        rows = [["", *map(str, points)]]
        rows.append(["tokens a second", *(f"{rate(found):.0f}" for found in points.values())])
        if all(found[0].least for found in points.values()):
            rows.append(
                ["of the limit", *(f"{100 * share(found):.0f} %" for found in points.values())]
            )
        parts.append(f"**{title[0].upper()}{title[1:]}**, model {about['size']}\n\n{table(rows)}")
    return "\n\n".join(parts) + "\n"


def grouped(samples: Sequence[Sample], curve: str) -> dict[int, list[Sample]]:
    """Samples of a curve by ``x``."""
    out: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.curve == curve:
            out.setdefault(sample.x, []).append(sample)
    return out


def rate(samples: Sequence[Sample]) -> float:
    """Median tokens a second."""
    return median([sample.tokens / sample.seconds for sample in samples])


def share(samples: Sequence[Sample]) -> float:
    """Median share of the roofline; 0 where none is known."""
    return median([(sample.least or 0) / sample.seconds for sample in samples])


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Write an SVG, a panel a curve. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams |= {"svg.hashsalt": NAME, "font.size": 9, "axes.spines.top": False,
                        "axes.spines.right": False}  # fmt: skip
    canvas, axes = pyplot.subplots(2, 2, figsize=(8, 5.6))
    for axis, (curve, title) in zip(axes.flat, CURVES.items()):
        points = grouped(samples, curve)
        axis.plot(list(points), [rate(found) for found in points.values()], "o-", color="#c2410c")
        if curve != "hits":
            axis.set_xscale("log", base=2)
            axis.set_xticks(list(points), [str(x) for x in points])
        axis.set_title(title.partition(" (")[0], loc="left", fontsize=10)
        axis.set_ylabel("tokens a second")
        axis.set_ylim(bottom=0)
        axis.grid(True, alpha=0.3)
    canvas.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)


def into(docs: Path, about: Mapping[str, Any], samples: Sequence[Sample]) -> None:
    """Write the table into ``docs/benchmarks.md``, with the plot. Raises ValueError without the
    markers."""
    draw(samples, docs / PLOT)
    text = f"![Throughput]({PLOT.as_posix()})\n\n{markdown(about, samples)}"
    put(docs / "benchmarks.md", NAME, text)
