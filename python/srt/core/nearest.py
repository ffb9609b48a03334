"""Nearest: which known name a misspelt one was to be, for "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SLIP = 0.75  # similarity from which on two words are one, misspelt
LONGEST = 256  # characters of a name that is compared


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that differs from ``name`` by a slip in one word. None where there is none.

    Words are separated by ``-`` or ``_``. A name with another word in it has another meaning, and
    is not proposed.
    """
    if len(name) > LONGEST:
        return None
    words = _words(name)
    best, found = 0.0, None
    for one in known:
        similarity = _of_names(words, _words(one))
        if similarity >= SLIP and similarity > best:
            best, found = similarity, one
    return found


def _words(name: str) -> list[str]:
    return name.strip("-").replace("_", "-").split("-")


def _of_names(one: list[str], other: list[str]) -> float:
    """Similarity of two names, in [0, 1]: that of the only word in which they differ."""
    if len(one) != len(other):
        return 1.0 if "".join(one) == "".join(other) else 0.0
    differing = [pair for pair in zip(one, other) if pair[0] != pair[1]]
    return _of_words(*differing[0]) if len(differing) == 1 else 0.0


def _of_words(one: str, other: str) -> float:
    """Similarity of two words, in [0, 1]: 1 for the same letters in any order."""
    if sorted(one) == sorted(other):
        return 1.0
    return difflib.SequenceMatcher(None, one, other).ratio()
