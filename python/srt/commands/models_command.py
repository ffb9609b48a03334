"""``sglang models``: which architectures are served, and what the tests verify of each."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict

from sglang.srt.models.verified import EVERY, Verified, verified

COLUMNS = 100


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "part", metavar="NAME", nargs="?", default="", help="list only names that contain this text"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """1 where no architecture has the name."""
    part = arguments.part.lower()
    rows = {name: row for name, row in verified().items() if part in name.lower()}
    if arguments.json:
        print(json.dumps({name: asdict(row) for name, row in rows.items()}, indent=2))
    elif not rows:
        print(f"no architecture's name contains {arguments.part!r}; sglang models lists all.")
    else:
        for line in lines(rows):
            print(line)
    return 0 if rows else 1


def lines(rows: dict[str, Verified]) -> list[str]:
    wide = max(map(len, rows))
    out = [f"{'':{wide}}  native  split  window  rotary or what is seen"]
    for name, row in rows.items():
        ranks, window = ("yes" if x else "-" for x in (row.ranks, row.windows))
        kinds = ", ".join(row.ropes or row.sees) or "-"
        out.append(f"{name:{wide}}  {row.native:6}  {ranks:5}  {window:6}  {kinds}")
    notes = [
        EVERY,
        "native: a forward pass on a CPU is one native call of recorded operations (tape) or goes "
        "layer by layer (layers); split: two tensor-parallel ranks are compared too; window: a "
        "sliding window that texts outgrow; rotary: kinds of position embeddings compared. "
        "Multimodal models are compared by prompts with one image, several images and frames of "
        "a video, whole, in chunks and decoded.",
    ]
    if len(rows) == 1:
        notes.insert(0, next(iter(rows.values())).about)
    for note in notes:
        out += ["", *textwrap.wrap(note, COLUMNS)]
    return out
