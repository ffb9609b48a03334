"""Source locations: the program's line that appended a node."""

from __future__ import annotations

import contextlib
import sys
from typing import NamedTuple


class Location(NamedTuple):
    """File and line of the statement that appended a node."""

    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"


def caller() -> Location:
    """Return the innermost line of the stack that is not part of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith("sglang.")
        or frame.f_code.co_filename == contextlib.__file__
    ):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)
