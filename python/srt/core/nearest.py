"""Nearest: finds the known name that a misspelt name probably means, for "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SLIP = 0.75  # least similarity of a misspelt word and the intended word
LONGEST = 256  # most characters of a name that is compared


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that differs from ``name`` by a typing error in one word, or None.

    Words are separated by ``-`` or ``_``. A known name with a word that is quite different has
    another meaning and is not returned.
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
    """Return the similarity in [0, 1] of the only word in which two names differ, else 0."""
    if len(one) != len(other):
        return 1.0 if "".join(one) == "".join(other) else 0.0
    differing = [pair for pair in zip(one, other) if pair[0] != pair[1]]
    return _of_words(*differing[0]) if len(differing) == 1 else 0.0


def _of_words(one: str, other: str) -> float:
    """Return the similarity of two words, in [0, 1]: 1 for the same letters in any order."""
    if sorted(one) == sorted(other):
        return 1.0
    return difflib.SequenceMatcher(None, one, other).ratio()
