"""Report: condensed records as the generated sections of ``docs/evaluation.md``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark.harness.page import put
from benchmark.harness.records import write
from benchmark.paper import plot, sections, speeds
from benchmark.paper.figures import Figures
from benchmark.paper.plan import SHORT, Record
from benchmark.paper.records import condensed

PAGE, KEPT, IMAGES = "evaluation.md", "evaluation.jsonl", "images"
NOTHING = "Not measured yet.\n"

SECTIONS: dict[str, Callable[[Figures], str]] = {
    "machine": sections.machine,
    "targets": speeds.targets,
    "throughput": speeds.throughput,
    "latency": speeds.latency,
    "images": speeds.images,
    "api": sections.api,
    "curve": sections.curve,
    "ablations": sections.ablations,
    "overhead": sections.overhead,
    "fsm": sections.fsm,
    "hits": sections.hits,
    "answers": sections.answers,
    "gaps": sections.gaps,
}


def text(name: str, figures: Figures) -> str:
    """Text of one section: its table, or the reason that it was not measured."""
    found = SECTIONS[name](figures)
    return f"{found}\n" if found else NOTHING


def into(docs: Path, records: Sequence[Record]) -> None:
    """Write all sections into the page in ``docs``, the plots, and the records beside it.

    Raises ValueError where the page lacks markers.
    """
    kept = condensed(records)
    figures = Figures(kept)
    drawn = _drawn(figures, docs / IMAGES)
    for name in SECTIONS:
        image = f"![{drawn[name]}]({IMAGES}/evaluation-{name}.svg)\n\n" if name in drawn else ""
        put(docs / PAGE, name, image + text(name, figures))
    write(docs / KEPT, kept)


def _drawn(figures: Figures, folder: Path) -> dict[str, str]:
    """The plots that there is something for, by section; written."""
    try:
        return plot.draw(figures, folder)
    except ImportError:
        print("no plots: matplotlib is not installed (extra: bench)")
        return {}


def problems(records: Sequence[Record]) -> list[str]:
    """Answers that differ and parts that failed. Lack of time is neither."""
    figures = Figures(condensed(records))
    found = [
        f"{r['claim']}: {r['items'] - r['equal']} of {r['items']} answers differ with {r['side']}"
        for r in figures.of("answers")
        if r["equal"] < r["items"]
    ]
    found += [
        f"{part['part']}: {part['why']}" for part in figures.unfinished() if part["state"] != SHORT
    ]
    return found
