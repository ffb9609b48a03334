"""Page: Markdown tables, and a page's sections between markers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

COLUMNS = 120  # width of a line of prose


def table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def wrapped(text: str) -> str:
    """A paragraph with at most 120 columns a line; long words and words with hyphens stay whole."""
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def put(path: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.

    Raises ValueError where the page has no such markers.
    """
    opening, closing = (f"<!-- {name}: {side} -->" for side in ("begin", "end"))
    before, begin, rest = path.read_text(encoding="utf-8").partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end:
        raise ValueError(f"{path} lacks {opening} or {closing}")
    path.write_text(f"{before}{opening}\n\n{text}\n{closing}{after}", encoding="utf-8")
