"""Plots of a run: share of the bound by pass, attention and product, and time by kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.gpu.records import Value

Rows = list[dict[str, Value]]
Tables = Mapping[str, Mapping[str, Rows]]
COLOURS = ("#e0562b", "#3f7fd4", "#1f9e89", "#a86fd1", "#c29a20", "#8a8f98")


def plots(tables: Tables, folder: Path) -> dict[str, str]:
    """File names of the plots that have anything to show, by stage. Raises ImportError without
    matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    made = {}
    for stage, make in _PLOTS.items():
        path = folder / f"{stage}.svg"
        if make(tables.get(stage, {}), path):
            made[stage] = path.name
    return made


def percent(value: Value) -> float:
    """A share such as "75%" as a number, 0 where there is none."""
    return float(value[:-1]) if isinstance(value, str) and value.endswith("%") else 0.0


def _passes(tables: Mapping[str, Rows], path: Path) -> bool:
    rows = tables.get("passes", [])
    labels = [f"{r['model']}\n{r['pass']}" for r in rows]
    ways = ("eager", "graph", "overlap")
    series = {way: [percent(r.get(f"{way} of bound")) for r in rows] for way in ways}
    return _bars(labels, series, path, [percent(r.get("goal")) for r in rows])


def _attention(tables: Mapping[str, Rows], path: Path) -> bool:
    rows = tables.get("attention", [])
    names = ("triton", "flashinfer", "native")
    series = {name: [percent(r.get(f"{name} of bound")) for r in rows] for name in names}
    return _bars([str(r["case"]) for r in rows], series, path)


def _products(tables: Mapping[str, Rows], path: Path) -> bool:
    rows = tables.get("products", [])
    models = list(dict.fromkeys(str(r["model"]) for r in rows))
    tokens = sorted({int(r["tokens"] or 0) for r in rows})
    shares: dict[tuple[Value, Value], list[float]] = {}
    for r in rows:
        shares.setdefault((r["model"], r["tokens"]), []).append(percent(r["of bound"]))
    series = {m: [_middle(shares.get((m, n), [])) for n in tokens] for m in models}
    return _bars([f"{n} tokens" for n in tokens], series, path)


def _profile(tables: Mapping[str, Rows], path: Path) -> bool:
    """Kernels by share of a pass, the ten longest of each."""
    prefix = "kernels of "
    parts = {
        name.removeprefix(prefix): rows[:10]
        for name, rows in tables.items()
        if name.startswith(prefix)
    }
    if not parts:
        return False
    pyplot = _pyplot()
    canvas, axes = pyplot.subplots(len(parts), 1, figsize=(9, 2.3 * len(parts)), squeeze=False)
    for axis, (name, rows) in zip(axes[:, 0], parts.items()):
        values = [float(r["us a pass"] or 0) for r in rows]
        axis.barh(range(len(rows)), values, color=COLOURS[1])
        axis.set_yticks(range(len(rows)), [str(r["kernel"])[:60] for r in rows], fontsize=7)
        axis.invert_yaxis()
        axis.set_title(f"{name}: us a pass", loc="left", fontsize=10)
    return _save(pyplot, canvas, path)


def _middle(values: Sequence[float]) -> float:
    known = sorted(value for value in values if value)
    return known[len(known) // 2] if known else 0.0


def _bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], path: Path,
    goals: Sequence[float] = (),
) -> bool:  # fmt: skip
    """Groups of bars in percent of the bound, with a line for each goal."""
    shown = {name: values for name, values in series.items() if any(values)}
    if not shown:
        return False
    pyplot = _pyplot()
    canvas, axis = pyplot.subplots(figsize=(max(7.0, 0.75 * len(labels) + 2), 4))
    width = 0.84 / len(shown)
    for i, (name, values) in enumerate(shown.items()):
        at = [x - 0.42 + (i + 0.5) * width for x in range(len(labels))]
        axis.bar(at, values, width, label=name, color=COLOURS[i % len(COLOURS)])
    for x, goal in enumerate(goals):
        if goal:
            axis.plot([x - 0.45, x + 0.45], [goal, goal], color="black", linewidth=1)
    axis.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=7)
    axis.set_ylabel("% of the bound")
    axis.yaxis.grid(True, alpha=0.3)
    axis.set_axisbelow(True)
    axis.legend(ncols=3, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    return _save(pyplot, canvas, path)


def _pyplot() -> Any:
    from matplotlib import pyplot

    # No date and no random names: the same records give the same file.
    pyplot.rcParams |= {"svg.hashsalt": "gpu", "font.size": 9, "axes.spines.top": False,
                        "axes.spines.right": False}  # fmt: skip
    return pyplot


def _save(pyplot: Any, canvas: Any, path: Path) -> bool:
    canvas.tight_layout()
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)
    return True


_PLOTS: dict[str, Callable[[Mapping[str, Rows], Path], bool]] = {
    "passes": _passes, "attention": _attention, "products": _products, "profile": _profile,
}  # fmt: skip
