"""Records: what a benchmark has measured, a line of JSON each, in a file that grows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def append(path: str | Path, *records: Mapping[str, Any]) -> None:
    """Write records behind those of the file. The folder is made where it is not there; what JSON
    has no form for becomes its text. Raises OSError."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(map(line, records))


def write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of records anew."""
    path.write_text("".join(map(line, records)), encoding="utf-8")


def line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"


def read(path: Path) -> list[Record]:
    """Read the records of a file, without a last line that was cut short. Raises OSError where
    there is no such file, and ValueError for a line that is not JSON."""
    found = []
    lines = path.read_text(encoding="utf-8").split("\n")  # U+2028 ends none
    for number, text in enumerate(lines):
        try:
            found.append(json.loads(text))
        except ValueError:
            if number + 1 < len(lines):
                raise ValueError(f"{path}, line {number + 1}: not JSON") from None
    return found
