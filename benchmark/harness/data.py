"""Data: the files of ``benchmark/data``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "data"


@cache
def records(name: str) -> list[Any]:
    """The objects of ``name``, one a line."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line]


@cache
def lines(name: str) -> list[str]:
    """The lines of ``name``."""
    return (FOLDER / name).read_text(encoding="utf-8").splitlines()
