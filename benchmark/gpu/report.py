"""Report: all records of a run as one page (report.md), one file of data (report.json), plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark.gpu.records import Record, Value, read, shown
from benchmark.gpu.stages import Stage

Rows = list[dict[str, Value]]
# Longest cell of a table in the page; all of it is in report.json.
WIDEST = 110


def write(folder: Path, stages: Sequence[Stage]) -> str:
    """Write everything that can be made of the records; the page is returned. A plot that cannot be
    made is named on the page."""
    folder.mkdir(parents=True, exist_ok=True)
    records = {stage.name: read(folder, stage.name) for stage in stages}
    tables = {name: tables_of(found) for name, found in records.items()}
    data = {
        name: {
            "attempts": [r for r in found if r["kind"] == "ended"],
            "tables": tables[name],
            "remarks": remarks_of(found),
        }
        for name, found in records.items()
    }
    (folder / "report.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    try:
        from benchmark.gpu.plots import plots

        pictures, lacking = plots(tables, folder), ""
    except Exception as error:  # matplotlib is missing, or its files; the page is worth more
        pictures, lacking = {}, f"No plots: {error}."
    page = markdown(stages, records, tables, pictures, lacking)
    (folder / "report.md").write_text(page, encoding="utf-8")
    return page


def tables_of(records: Sequence[Record]) -> dict[str, Rows]:
    """Rows by table, in the order in which the tables began."""
    found: dict[str, Rows] = {}
    for record in records:
        if record["kind"] == "row":
            found.setdefault(record["table"], []).append(record["values"])
    return found


def remarks_of(records: Sequence[Record]) -> list[str]:
    return [record["text"] for record in records if record["kind"] == "remark"]


def markdown(
    stages: Sequence[Stage],
    records: Mapping[str, Sequence[Record]],
    tables: Mapping[str, Mapping[str, Rows]],
    pictures: Mapping[str, str],
    lacking: str = "",
) -> str:
    """The page. ``pictures``: title and file name of each plot, by stage."""
    known = tables.get("environment", {}).get("environment", [])
    about = {str(r["what"]): r["found"] for r in known}
    parts = [
        f"# {about.get('GPU', 'a GPU')}: torch {about.get('torch', '?')}, "
        f"Triton {about.get('triton', '?')}, FlashInfer {about.get('flashinfer-python', '?')}",
        "## In short", *_summary(tables), "## Stages", table(_attempts(stages, records)),
    ]  # fmt: skip
    for stage in stages:
        parts.append(f"## {stage.title}")
        if stage.name in pictures:
            parts.append(f"![{stage.title}]({pictures[stage.name]})")
        for name, found in tables[stage.name].items():
            parts += [f"### {name}"] if name != stage.name else []
            parts.append(table(found))
        parts += [f"- {text}" for text in remarks_of(records[stage.name])]
        if not records[stage.name]:
            parts.append("Not run.")
    return "\n\n".join([*parts, lacking]).rstrip() + "\n"


def _attempts(stages: Sequence[Stage], records: Mapping[str, Sequence[Record]]) -> Rows:
    """Every attempt at every stage. One without an end was interrupted with the whole run."""
    found: Rows = []
    for stage in stages:
        ended = [r for r in records[stage.name] if r["kind"] == "ended"]
        began = [r for r in records[stage.name] if r["kind"] == "started"]
        for r in ended:
            found.append({
                "stage": stage.name, "mode": r["mode"] or None, "outcome": r["status"],
                "seconds": r["seconds"], "detail": r["detail"] or None,
            })  # fmt: skip
        if len(began) > len([r for r in ended if r["status"] != "left out"]):
            mode = began[-1]["mode"] or None
            found.append({"stage": stage.name, "mode": mode, "outcome": "interrupted"})
        elif not ended:
            found.append({"stage": stage.name, "mode": None, "outcome": "not run"})
    return found


def _summary(tables: Mapping[str, Mapping[str, Rows]]) -> list[str]:
    """Lines that answer: is it right, does it wait or compile, and is it fast."""

    def rows(stage: str, name: str) -> Rows:
        return list(tables.get(stage, {}).get(name, []))

    lines = []
    checked = rows("checks", "checks")
    if checked:
        total = {name: sum(int(r[name] or 0) for r in checked) for name in ("passed", "failed")}
        died = [str(r["file"]) for r in checked if r["died"]]
        lines.append(
            f"- Tests: {total['passed']} passed, {total['failed']} failed"
            + (f"; ended early: {', '.join(died)}" if died else "")
        )
    launches = rows("passes", "waits")
    waiting = [r for r in launches if str(r["outcome"]).startswith(("waits", "broken"))]
    if launches:
        names = ", ".join(f"{r['model']} {r['way']} {r['launch']}" for r in waiting)
        lines.append(f"- Launches that wait for the device: {names or 'none'}")
    for r in rows("passes", "compiled after start"):
        lines.append(
            f"- {r['model']}: {r['compiled']} kernels compiled and {r['read']} read after start"
        )
    for r in rows("passes", "passes"):
        if r.get("goal"):
            reached = r.get("reached") or "unknown"
            lines.append(f"- {r['model']}, {r['pass']}: {reached} of the bound, goal {r['goal']}")
    for name, found in tables.get("load", {}).items():
        for r in found:
            lines.append(
                f"- {name}, {r['way']}: {shown(r['generated a second'])} tokens a second, texts "
                f"equal to the first way's: {r['texts as the first way' + chr(39) + 's']}"
            )
    return lines or ["- Nothing was measured."]


def table(rows: Rows) -> str:
    """A Markdown table; columns in the order in which they first appear, empty ones left out."""
    columns = [
        name for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) is not None for row in rows)
    ]  # fmt: skip
    if not columns:
        return "No rows."
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [
        "| " + " | ".join(_cell(row.get(name)) for name in columns) + " |" for row in rows
    ]  # fmt: skip
    return "\n".join(lines)


def _cell(value: Value) -> str:
    text = " ".join(shown(value).split()).replace("|", "\\|")
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."
