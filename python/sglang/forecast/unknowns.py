"""Unknowns: pairs of characters that stand for unknown parts of texts, and units of these parts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from sglang.forecast.cache_model import Units, units

MARK = "\ufdd0"  # first of the pair: a noncharacter, which no real text contains
FIRST = 0xF0000  # second of the pair: a private-use character, ordinary without MARK before it
LAST = 0x10FFFD
_SKIPPED = range(0xFFFFE, 0x100000)  # not characters
STANDS = f"{MARK}[\U000f0000-\U000ffffd\U00100000-\U0010fffd]"  # pattern of a pair
BASE = 1 << 40  # above every token id
ROOM = 1 << 21  # numbers reserved for the units of one unknown text


class UnknownText(NamedTuple):
    """A text that is not known: its label in messages, its number, its length in tokens."""

    label: str
    number: int
    length: int


class Unknowns:
    """Unknown texts of one plan. Texts with the same key begin with the same units."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._labels: list[str] = []
        self._pairs: dict[UnknownText, str] = {}
        self._texts: dict[str, UnknownText] = {}

    def number(self, key: Hashable, label: str) -> int:
        """Return the number of ``key``, a new one for a new key."""
        number = self._numbers.setdefault(key, len(self._labels))
        if number == len(self._labels):
            self._labels.append(label)
        return number

    def pair(self, key: Hashable, label: str, length: int) -> str:
        """Return a text of two characters that stands for an unknown text of ``length`` tokens."""
        unknown = UnknownText(label, self.number(key, label), length)
        if unknown not in self._pairs:
            place = FIRST + len(self._pairs)
            place += len(_SKIPPED) if place >= _SKIPPED.start else 0
            if place > LAST:
                raise ValueError(
                    f"the batch has more than {len(self._pairs)} generations; plan a part of its "
                    "items"
                )
            self._pairs[unknown] = MARK + chr(place)
            self._texts[MARK + chr(place)] = unknown
        return self._pairs[unknown]

    def of(self, text: str) -> UnknownText | None:
        """Return the unknown text that ``text`` stands for, or None."""
        return self._texts.get(text)

    def label(self, unit: int) -> str | None:
        """Return the label of an unknown unit; None for a token's id."""
        return self._labels[(unit - BASE) // ROOM] if unit >= BASE else None


def run(number: int, length: int) -> Units:
    """Return ``length`` units of the unknown text ``number``."""
    first = BASE + number * ROOM
    return units(range(first, first + min(length, ROOM)))
