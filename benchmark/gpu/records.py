"""Records: results of the stages, as lines of JSON that are written while a stage runs.

A process that dies leaves every line it wrote. The kinds of line:

    row       {"table": ..., "values": {...}}     one measurement
    remark    {"text": ...}                       something left out, and why
    case      {"case": ...}                       a case begins, which an attempt after this skips
    started   {"mode": ...}                       an attempt begins
    ended     {"mode", "status", "seconds", "detail"}    its outcome, written by the parent process
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Value = str | float | int | bool | None
Record = dict[str, Any]


class Log:
    """File of one stage's records."""

    def __init__(self, folder: Path, stage: str) -> None:
        self.stage, self.path = stage, folder / "stages" / f"{stage}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, kind: str, **fields: Any) -> None:
        """Append a record. It is in the file when this returns."""
        record = {"stage": self.stage, "kind": kind, "time": round(time.time(), 3), **fields}
        line = json.dumps(record, default=str) + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            if file.tell() and not self.path.read_bytes().endswith(b"\n"):
                file.write("\n")  # a process died within a line
            file.write(line)

    def row(self, table: str, values: Mapping[str, Value]) -> None:
        """Append a measurement."""
        self.add("row", table=table, values=dict(values))

    def remark(self, text: str) -> None:
        """Append a sentence about what is missing."""
        self.add("remark", text=text)


def read(folder: Path, stage: str) -> list[Record]:
    """Records of a stage, in order. A line that a dying process left incomplete is passed over."""
    path = folder / "stages" / f"{stage}.jsonl"
    return list(_parsed(path.read_text(encoding="utf-8"))) if path.exists() else []


def _parsed(text: str) -> Iterator[Record]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def rows(records: list[Record], table: str) -> list[dict[str, Value]]:
    """Values of the rows of one table."""
    return [r["values"] for r in records if r["kind"] == "row" and r["table"] == table]


def shown(value: Value) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
