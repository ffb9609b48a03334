"""Report: records as Markdown tables, into a page between two markers, and what was wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

from benchmark.harness.page import put, table
from benchmark.models import SHAPES
from benchmark.peers import plot
from benchmark.peers.check import LIMIT
from benchmark.peers.figures import Figures, Middle, Record, counterpart
from benchmark.peers.targets import outcomes
from benchmark.peers.work import WORKS

NAME = "peers"
PLOT = Path("images") / "peers.svg"


def into(docs: Path, records: Sequence[Record]) -> None:
    """Write ``docs/benchmarks.md``, with the plot where matplotlib is installed.

    Raises ValueError where the page has no markers.
    """
    text = markdown(records)
    try:
        plot.draw(records, docs / PLOT)
        text = f"![Share of the machine's limit]({PLOT.as_posix()})\n\n{text}"
    except ImportError:
        print("no plot: matplotlib is not installed (extra: bench)")
    put(docs / "benchmarks.md", NAME, text)


def markdown(records: Sequence[Record]) -> str:
    """Machine, a table a size, targets, checks, contenders left out."""
    figures = Figures(records)
    parts = [_machine(figures)]
    parts += [_size(figures, size) for size in figures.sizes]
    parts += [_targets(figures), _checks(figures), _left_out(figures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def problems(records: Sequence[Record]) -> list[str]:
    """Answers that are more than a near tie away from float32, and contenders that failed."""
    found = [
        f"{r['size']}: {r['contender']} failed: {r['why']}"
        for r in records
        if r["kind"] == "left out" and r["failed"]
    ]
    for r in records:
        if r["kind"] == "check" and r["regret"] > LIMIT[r["weights"]]:
            found.append(
                f"{r['size']} {r['work']}: {r['contender']} drew a token {r['regret']:.2f} "
                f"deviations below float32's; at most {LIMIT[r['weights']]:g}"
            )
    return found


def _machine(figures: Figures) -> str:
    lines = []
    for about in figures.of("machine"):
        where = (
            f"{about['time'][:10]}, {about['machine']} ({', '.join(about['instructions'])}), "
            f"{about['cores']} cores, {about['memory_gib']} GiB, load {about['load'][0]} at the "
            f"beginning, {about['system']}, Python {about['python']}, commit {about['commit']}:"
        )
        lines.append(f"{_filled(where)}\n\n    python -m benchmark.peers {about['command']}")
    releases: dict[str, str] = {}
    for loaded in figures.of("loaded"):
        releases |= loaded["versions"]
    if releases:
        lines.append(", ".join(f"{name} {number}" for name, number in releases.items()) + ".")
    return "\n\n".join(lines)


def _size(figures: Figures, size: str) -> str:
    """Seconds of all contenders, works down, contenders across."""
    names, works = figures.contenders(size), figures.works(size)
    rows = [["", *names]]
    for work in works:
        cells = [_cell(figures, size, work, name) for name in names]
        rows.append([f"**{work}** {WORKS[work]}", *cells])
    if any(figures.ttft(size, name, "p50") for name in names):
        for part in ("p50", "p99"):
            cells = [_seconds(figures.ttft(size, name, part)) for name in names]
            rows.append([f"W5, {part} of the time to the first token", *cells])
    shape = SHAPES[size]
    about = (
        f"{shape.parameters / 1e6:.1f} M parameters: {shape.layers} layers of {shape.hidden}, "
        f"{shape.heads} heads and {shape.kv_heads} of KV, inner {shape.inner}"
    )
    found = ""
    for limits in figures.of("limits"):
        if limits["size"] == size:
            found = (
                f" Limits measured: {limits['bandwidth'] / 1e9:.1f} GB/s, "
                f"{limits['bfloat16'] / 1e12:.2f} TFLOP/s in bf16, "
                f"{limits['int8'] / 1e12:.2f} in int8."
            )
    return f"### {size}\n\n{_filled(f'{about}.{found}')}\n\n{table(rows)}"


def _filled(text: str) -> str:
    """The text in lines as wide as those of the docs."""
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _cell(figures: Figures, size: str, work: str, name: str) -> str:
    seconds = figures.seconds(size, work, name)
    if seconds is None:
        return "-"
    parts = [_seconds(seconds)]
    if share := figures.share(size, work, name):
        parts.append(f"{100 * share.value:.0f} %")
    ours = counterpart(name)
    if name != ours and (ratio := figures.ratio(size, work, ours, name)):
        parts.append(f"**{ratio.value:.2f}x** ({ratio.least:.2f}-{ratio.most:.2f})")
    return ", ".join(parts)


def _seconds(middle: Middle | None) -> str:
    if middle is None:
        return "-"
    return f"{middle.value:.3g} s" if middle.value < 100 else f"{middle.value:.0f} s"


def _targets(figures: Figures) -> str:
    rows = [["target", "size", "measured (least-most)", ""]]
    for outcome in outcomes(figures):
        target, measured = outcome.target, outcome.measured
        if target.beside:
            peers = " and ".join(target.beside) if len(target.beside) == 1 else "the best peer"
            what = "" if target.of == "seconds" else " (p99 of the time to the first token)"
            text = f"{target.work}: {target.ours} {target.least:g}x as fast as {peers}{what}"
            told = f"{measured.value:.2f}x ({measured.least:.2f}-{measured.most:.2f})"
            told += f" {outcome.peer}" if len(target.beside) > 1 else ""
        else:
            text = f"{target.work}: {target.ours} at {100 * target.least:.0f} % of the limit"
            told = f"{100 * measured.value:.0f} % ({100 * measured.least:.0f}-"
            told += f"{100 * measured.most:.0f})"
        rows.append([text, outcome.size, told, "reached" if outcome.reached else "missed"])
    return f"### Targets\n\n{table(rows)}" if len(rows) > 1 else ""


def _checks(figures: Figures) -> str:
    """A line a contender: equal share and worst regret by size and work."""
    keys = [(size, work) for size in figures.sizes for work in figures.works(size)]
    names = dict.fromkeys(name for size in figures.sizes for name in figures.contenders(size))
    rows = [["", *(f"{size} {work}" for size, work in keys)]]
    for name in names:
        found = [figures.check(size, work, name) for size, work in keys]
        if any(found):
            rows.append([
                name, *(f"{100 * c['equal']:.0f} %, {c['regret']:.2f}" if c else "-" for c in found)
            ])  # fmt: skip
    return f"### Which tokens were chosen\n\n{table(rows)}" if len(rows) > 1 else ""


def _left_out(figures: Figures) -> str:
    return "\n".join(_reasons(figures))


def _reasons(figures: Figures) -> Iterator[str]:
    seen = set()
    for record in figures.of("left out"):
        line = f"- Left out: {record['contender']}: {record['why']}"
        if line not in seen:
            seen.add(line)
            yield line
