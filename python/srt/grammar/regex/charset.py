"""CharSet: a set of code points, and the sets that Unicode defines.

The tables come from the running Python (``re``, ``str.lower``, ``unicodedata``), so a pattern means
the same as in ``re``. They are computed once in a process, at the first use.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

LIMIT = 0x110000
UNUSED, SPECIAL = 0x40000, 0xE0000  # planes 4 to 13 hold nothing; plane 14 a little
LONGEST_ALPHABET = 1000  # letters in a row; ideographs, of which there are more, have no case
ASSIGNED = ((0, UNUSED), (SPECIAL, SPECIAL + 0x1000))


class CharSet:
    """An immutable set of code points. ``points``: the boundaries of its ranges, ascending, as flat
    [from, to) pairs."""

    __slots__ = ("_hash", "points")

    def __init__(self, points: tuple[int, ...]) -> None:
        self.points = points
        self._hash = hash(points)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, CharSet) and self._hash == other._hash and self.points == other.points
        )

    def __contains__(self, point: int) -> bool:
        return bisect_right(self.points, point) % 2 == 1

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges as [from, to) pairs, ascending."""
        return zip(self.points[::2], self.points[1::2])

    def complement(self) -> CharSet:
        """Return the set of all other code points. Surrogates stay in; the partition drops them."""
        points = self.points
        points = points[1:] if points[:1] == (0,) else (0, *points)
        points = points[:-1] if points[-1:] == (LIMIT,) else (*points, LIMIT)
        return CharSet(points)

    @staticmethod
    def union(sets: Iterable[CharSet]) -> CharSet:
        distinct = list(dict.fromkeys(sets))
        if len(distinct) < 2:
            return distinct[0] if distinct else NOTHING
        return CharSet.of(pair for one in distinct for pair in one.ranges())

    @staticmethod
    def of(pairs: Iterable[tuple[int, int]]) -> CharSet:
        """Return the set of [from, to) pairs, given in any order."""
        points: list[int] = []
        for begin, end in sorted(pairs):
            if points and begin <= points[-1]:
                points[-1] = max(points[-1], end)
            else:
                points += (begin, end)
        return CharSet(tuple(points))


NOTHING = CharSet(())
EVERYTHING = CharSet((0, LIMIT))
NEWLINE = CharSet((10, 11))
ASCII = {
    "d": CharSet.of([(48, 58)]),
    "s": CharSet.of([(9, 14), (32, 33)]),
    "w": CharSet.of([(48, 58), (65, 91), (95, 96), (97, 123)]),
}


@lru_cache(maxsize=4096)
def single(point: int) -> CharSet:
    return CharSet((point, point + 1))


@lru_cache(maxsize=2)
def _characters(low: int, high: int) -> str:
    points = np.arange(low, high, dtype="<u4").tobytes()
    return points.decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=16)
def shorthand(letter: str, ascii_only: bool) -> CharSet:
    """Return the set of ``\\d``, ``\\s`` or ``\\w``; an upper-case letter gives the complement."""
    if letter.isupper():
        return shorthand(letter.lower(), ascii_only).complement()
    if ascii_only:
        return ASCII[letter]
    found = []
    for low, high in ASSIGNED:
        text = _characters(low, high)
        for span in re.finditer(rf"\{letter}+", text):
            found.append((low + span.start(), low + span.end()))
    return CharSet.of(found)


@lru_cache(maxsize=1)
def _categories() -> dict[str, list[tuple[int, int]]]:
    """Return the ranges of code points by general category (two letters)."""
    found: dict[str, list[tuple[int, int]]] = {}
    for low, high in ASSIGNED:
        names = list(map(unicodedata.category, _characters(low, high)))
        begin = 0
        for at in range(1, len(names) + 1):
            if at == len(names) or names[at] != names[begin]:
                found.setdefault(names[begin], []).append((low + begin, low + at))
                begin = at
    rest = [(UNUSED, SPECIAL), (SPECIAL + 0x1000, 0xF0000), (0xFFFFE, 0x100000)]
    found["Cn"] += [*rest, (0x10FFFE, LIMIT)]
    found["Co"] += [(0xF0000, 0xFFFFE), (0x100000, 0x10FFFE)]
    return found


@lru_cache(maxsize=64)
def category(name: str) -> CharSet | None:
    """Return the set of a general category, such as ``L``, ``Lu``, ``LC`` or ``Any``; None if the
    name is unknown."""
    if name == "Any":
        return EVERYTHING
    wanted = ("Lu", "Ll", "Lt") if name in ("LC", "L&") else (name,)
    pairs = [
        pair
        for one in wanted
        for key, ranges in _categories().items()
        if key == one or (len(one) == 1 and key[0] == one)
        for pair in ranges
    ]
    return CharSet.of(pairs) if pairs else None


def _lower(char: str) -> str:
    low = char.lower()
    return low if len(low) == 1 else low[0]  # only U+0130 has two


class Cases:
    """Case variants of characters under IGNORECASE.

    ``re`` compares ``lower(char)`` with the lower case of the pattern's character. It also compares
    it with all lower-case characters that have the same upper case as that one.

    ``variants``: for each code point that matches more than itself, all code points that it
    matches.
    """

    def __init__(self) -> None:
        lowers: dict[str, str] = {}
        twins: dict[str, set[str]] = {}  # lower-case characters by their upper case
        for begin, end in shorthand("w", False).ranges():
            if end - begin > LONGEST_ALPHABET:
                continue
            for char in map(chr, range(begin, end)):
                self._add(char, lowers, twins)
        for char in map(chr, range(0x300, 0x370)):  # U+0345 has a case and is no \w
            self._add(char, lowers, twins)
        for char in map(chr, range(0x2460, 0x2500)):  # letters in circles
            self._add(char, lowers, twins)
        alike: dict[str, set[str]] = {}
        for group in twins.values():
            for char in group:
                alike.setdefault(char, set()).update(group)
        by_lower: dict[str, set[str]] = {}
        for char, low in lowers.items():
            by_lower.setdefault(low, set()).add(char)
        self.variants: dict[int, tuple[int, ...]] = {}
        for char, low in lowers.items():
            keys = {low} | alike.get(low, set())
            same = {char}.union(*(by_lower.get(key, {key}) for key in keys))
            if len(same) > 1:
                self.variants[ord(char)] = tuple(sorted(map(ord, same)))
        self.sorted = sorted(self.variants)

    @staticmethod
    def _add(char: str, lowers: dict[str, str], twins: dict[str, set[str]]) -> None:
        low, up = _lower(char), char.upper()
        if low != char or up != char:
            lowers[char] = low
            lowers.setdefault(low, low)
            twins.setdefault(up, set()).add(low)

    def fold(self, members: CharSet) -> CharSet:
        """Return the set that ``members`` matches under IGNORECASE. Categories must be folded
        already."""
        inside = [
            point
            for begin, end in members.ranges()
            for point in self.sorted[
                bisect_left(self.sorted, begin) : bisect_left(self.sorted, end)
            ]
        ]
        if not inside:
            return members
        more = {char for point in inside for char in self.variants[point]}
        return CharSet.of([*members.ranges(), *((char, char + 1) for char in more)])


@lru_cache(maxsize=1)
def cases() -> Cases:
    return Cases()


def fold_ascii(members: CharSet) -> CharSet:
    """Return the set that ``members`` matches under IGNORECASE with ASCII."""
    more = [
        (other, other + 1)
        for upper in range(65, 91)
        for one, other in ((upper, upper + 32), (upper + 32, upper))
        if one in members
    ]
    return CharSet.of([*members.ranges(), *more]) if more else members
