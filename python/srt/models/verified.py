"""Verified: architectures and options that the tests compare with transformers.

Run as a program, ``test/cpu/srt/models/test_verified.py`` makes ``assets/verified.json`` from the
tests' cases; as a test it fails where the file is stale.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "assets" / "verified.json"

EVERY = (
    "Of every architecture, random small models give the logits of transformers to 1e-4 in float32 "
    "- whole prompts, random chunks and token by token through the paged cache, with native and "
    "with torch kernels - and the same greedy texts of 32 tokens."
)


@dataclass(frozen=True)
class Verified:
    """Properties of an architecture that the tests verify.

    Attributes:
        about: the family and how it differs from others, in a sentence.
        cases: number of random models whose logits are compared.
        native: how native kernels run it on a CPU: "tape" (recorded, one call a pass) or "layers".
        sees: what prompts may hold besides text: one image, several images, frames of a video.
        ropes: kinds of rotary embeddings compared.
        windows: sliding windows compared, in tokens, on texts that are longer.
        ranks: whether two tensor-parallel ranks are compared too.
    """

    about: str
    cases: int
    native: str
    sees: tuple[str, ...]
    ropes: tuple[str, ...]
    windows: tuple[int, ...]
    ranks: bool


def verified() -> dict[str, Verified]:
    """Rows by name, sorted."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    for row in found.values():
        row.update({key: tuple(value) for key, value in row.items() if isinstance(value, list)})
    return {name: Verified(**row) for name, row in found.items()}


def table(rows: dict[str, Verified]) -> list[str]:
    """The table as lines of Markdown."""
    heads = ("architecture", "what it is", "rotary", "window", "sees", "native", "split")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in rows.items():
        cells = (
            f"`{name}`", row.about, ", ".join(row.ropes) or "-", "yes" if row.windows else "-",
            ", ".join(row.sees) or "-", row.native, "yes" if row.ranks else "-",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines
