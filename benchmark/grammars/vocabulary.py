"""Vocabularies to compile for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test"))

NAMES = ("tekken", "embedded", "bytes")


@cache
def vocabulary(name: str) -> Any:
    """tekken: 131,072 tokens; embedded: the embedded model's 3,072; bytes: the 256 and an end."""
    from helpers.vocabularies import embedded, tekken
    from sglang.srt.core.vocabulary import Vocabulary

    if name == "tekken":
        return tekken()
    if name == "embedded":
        return embedded()

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    tokens = (*(bytes([byte]) for byte in range(256)), b"")
    return Vocabulary(tokens, 257, (256,), frozenset({256}), encode)
