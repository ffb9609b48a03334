"""Automaton of stop patterns: it reports after each character whether a match of a pattern ends
there.

It is a Glushkov automaton (1961) of all patterns of a request. It runs on bits as in Navarro and
Raffinot, *Flexible Pattern Matching in Strings* (2002), section 5.2. Position i of the patterns is
bit i, and one integer holds the positions that the text has reached. A character costs the same
number of integer operations whatever the text is (``cost``), so no text is searched again.

A transition crosses one boundary between two characters. Assertions at a boundary (``^``, ``$``,
``\\b``, ...) depend only on the two bytes around it. There are four kinds of bytes: none (edge of
the text), a line feed, a byte of a word, any other. ``Moves`` exist for each pair of kinds, so
assertions are exact.

RE2 decides which atoms match a character, once for each new character (``taken``). So the dialect's
classes and case folding are not implemented again here. Text is split into characters as in RE2's
own UTF-8 programs, see ``length``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sglang.srt.grammar import re2_tree as tree

MAX_POSITIONS = 2048  # atoms in the patterns of a request, with repeats expanded
MAX_MOVES = 4096  # positions times the number of boundary kinds that assertions distinguish
MAX_OPERATIONS = 64  # integer operations per character
MAX_ATOMS = 256  # different classes, escapes and letters that ignore case
KEPT_CHARACTERS = 4096  # cached results of ``taken``
_FEW = 64  # limit of the transitions of an edge that become single shifts

Matching: TypeAlias = Callable[[bytes], list[int] | None]

EDGE, LINE, WORD, OTHER = range(4)  # one side of a boundary; EDGE: the text begins or ends
KIND = bytes(
    LINE if b == 10 else WORD if chr(b) in "_" or (b < 128 and chr(b).isalnum()) else OTHER
    for b in range(256)
)


def length(lead: int) -> int:
    """Return the number of bytes of the character that begins with byte ``lead``; 1 for an invalid
    first byte. As in RE2, overlong forms after E0 and F0 count as characters."""
    if lead < 0xC2 or lead > 0xF4:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def holds(assertion: str, before: int, after: int) -> bool:
    """Return True if an assertion holds between two kinds of bytes (EDGE, LINE, WORD, OTHER)."""
    if assertion == "begin text":
        return before == EDGE
    if assertion == "end text":
        return after == EDGE
    if assertion == "begin line":
        return before in (EDGE, LINE)
    if assertion == "end line":
        return after in (EDGE, LINE)
    return ((before == WORD) != (after == WORD)) == (assertion == "word")


@dataclass(frozen=True, slots=True)
class Moves:
    """Transitions at a boundary of one kind.

    Attributes:
        first: bits of the positions that may begin a match after the boundary.
        last: bits of the positions that may end a match before the boundary.
        empty: the empty text matches at the boundary.
        shifts: pairs (distance, positions with a transition to position + distance).
        jumps: pairs (positions, the positions to which each of them has a transition).
    """

    first: int
    last: int
    empty: bool
    shifts: tuple[tuple[int, int], ...]
    jumps: tuple[tuple[int, int], ...]

    def step(self, reached: int) -> int:
        """Return the positions that may match the next character, after positions ``reached``."""
        out = self.first
        for distance, those in self.shifts:
            some = reached & those
            out |= some << distance if distance >= 0 else some >> -distance
        for those, into in self.jumps:
            if reached & those:
                out |= into
        return out


class StopAutomaton:
    """Automaton of all patterns of a request. The caller (``Patterns``) holds the state.

    Args:
        patterns: RE2 patterns that RE2 has compiled.
        matching: returns, for a list of atoms, a function that returns the indices of the atoms
            that match a character (None for no atom).

    Attributes:
        moves: index ``4 * before + after``, the kinds of the bytes around a boundary.
        cost: limit of the integer operations per character, with the call of RE2 for a new one.

    Raises ValueError, naming size, limit and fix, for patterns that cost too much.
    """

    def __init__(self, patterns: Sequence[str], matching: Callable[[list[str]], Matching]) -> None:
        root = tree.Re2Choice(tuple(tree.parse(pattern) for pattern in patterns))
        self._letters: dict[bytes, int] = {}  # bits of positions of each literal character
        self._known: dict[bytes, int] = {}
        positions = _Positions()
        positions.read(root)
        sources = self._sort(positions.atoms)
        self._atoms = list(sources.values())  # bits of positions of each atom
        self._matching = matching(list(sources)) if sources else None
        self.moves = _moves(root, positions)
        operations = 2 + max(len(moves.shifts) + len(moves.jumps) for moves in self.moves)
        if operations > MAX_OPERATIONS:
            raise ValueError(
                f"stop_regex costs {operations} operations a character; at most "
                f"{MAX_OPERATIONS}. Use fewer repeats inside repeats and fewer optional parts."
            )
        self.cost = operations + len(self._atoms) // 4

    def _sort(self, atoms: Sequence[tree.Atom]) -> dict[str, int]:
        """Return the positions of each atom. Literal characters are stored separately."""
        asked: dict[str, int] = {}
        for position, atom in enumerate(atoms):
            if atom.text:
                key = atom.text.encode()
                self._letters[key] = self._letters.get(key, 0) | 1 << position
            else:
                asked[atom.source] = asked.get(atom.source, 0) | 1 << position
        if len(asked) > MAX_ATOMS:
            raise ValueError(
                f"stop_regex has {len(asked)} different classes; at most {MAX_ATOMS}. "
                "Use fewer or simpler patterns."
            )
        return asked

    def taken(self, character: bytes) -> int:
        """Return the positions that match ``character``."""
        found = self._known.get(character)
        if found is None:
            found = self._letters.get(character, 0)
            if self._matching is not None:
                for index in self._matching(character) or ():
                    found |= self._atoms[index]
            if len(self._known) >= KEPT_CHARACTERS:
                self._known.clear()
            self._known[character] = found
        return found


def _moves(root: tree.Node, positions: _Positions) -> list[Moves]:
    """Return one ``Moves`` for each pair of kinds. Raises ValueError if they are too many."""
    names, sides = sorted(positions.assertions), range(4)
    facts = [
        tuple(holds(name, before, after) for name in names) for before in sides for after in sides
    ]
    size = len(positions.atoms) * len(set(facts))
    if size > MAX_MOVES:
        raise ValueError(
            f"stop_regex is {len(positions.atoms)} characters long with its repeats written out, "
            f"for each of {len(set(facts))} cases of its assertions (^, $, \\b, \\B); at most "
            f"{MAX_MOVES} in all. Lower a repeat count, or use fewer kinds of assertions."
        )
    made = {true: _Builder(dict(zip(names, true))).moves(root) for true in set(facts)}
    return [made[true] for true in facts]


class _Positions:
    """The atoms of a tree in order, with repeats expanded, and the names of its assertions."""

    def __init__(self) -> None:
        self.atoms: list[tree.Atom] = []
        self.assertions: set[str] = set()

    def read(self, node: tree.Node) -> None:
        """Collect the atoms and assertions of a tree. Raises ValueError for more than
        MAX_POSITIONS atoms."""
        if isinstance(node, tree.Atom):
            self.atoms.append(node)
        elif isinstance(node, tree.Assertion):
            self.assertions.add(node.name)
        elif isinstance(node, tree.Re2Repeat):
            self._repeat(node)
        else:
            for part in node.parts if isinstance(node, tree.Re2Sequence) else node.branches:
                self.read(part)
        if len(self.atoms) > MAX_POSITIONS:
            raise ValueError(
                f"stop_regex is {len(self.atoms)} characters long with its repeats written out; "
                f"at most {MAX_POSITIONS} in all patterns. Lower a repeat count."
            )

    def _repeat(self, node: tree.Re2Repeat) -> None:
        start = len(self.atoms)
        self.read(node.node)
        one = self.atoms[start:]
        del self.atoms[start:]
        times = copies(node)
        if times * len(one) + start > MAX_POSITIONS:
            one, times = one[:1] * (times * len(one)), 1  # ``read`` counts and refuses them
        self.atoms += one * times


def copies(node: tree.Re2Repeat) -> int:
    """Return the number of copies of its node to which a repeat is expanded."""
    return max(node.least, 1) if node.most < 0 else node.most


@dataclass(slots=True)
class _Part:
    """Part of an automaton. ``first``, ``last``: bits of the positions that begin and end it."""

    empty: bool
    first: int = 0
    last: int = 0


class _Builder:
    """Glushkov's construction. ``facts``: True for each assertion that holds at the boundary."""

    def __init__(self, facts: dict[str, bool]) -> None:
        self._facts = facts
        self._count = 0  # number of positions assigned so far
        self._edges: dict[int, int] = {}  # from last positions of a part to first ones of the next

    def moves(self, root: tree.Node) -> Moves:
        whole = self._part(root)
        shapes = {edge: _shape(*edge) for edge in self._edges.items()}
        usual = Counter(shape for shape in shapes.values() if len(shape) > 1)
        shifts: dict[int, int] = {}
        jumps: dict[int, int] = {}
        for (last, first), shape in shapes.items():
            if len(shape) == 1 or usual[shape] > 2:
                for position, distance in _transitions(last, first):
                    shifts[distance] = shifts.get(distance, 0) | 1 << position
            else:
                jumps[first] = jumps.get(first, 0) | last
        return Moves(
            whole.first, whole.last, whole.empty, tuple(shifts.items()),
            tuple((last, first) for first, last in jumps.items()),
        )  # fmt: skip

    def _part(self, node: tree.Node) -> _Part:
        if isinstance(node, tree.Atom):
            bit = 1 << self._count
            self._count += 1
            return _Part(False, bit, bit)
        if isinstance(node, tree.Assertion):
            return _Part(self._facts[node.name])
        if isinstance(node, tree.Re2Repeat):
            return self._repeat(node)
        if isinstance(node, tree.Re2Choice):
            parts = [self._part(branch) for branch in node.branches]
            out = _Part(any(part.empty for part in parts))
            for part in parts:
                out.first |= part.first
                out.last |= part.last
            return out
        return self._sequence([self._part(part) for part in node.parts])

    def _sequence(self, parts: Sequence[_Part]) -> _Part:
        out = _Part(True)
        for part in parts:
            self._edge(out.last, part.first)
            out.first |= part.first if out.empty else 0
            out.last = part.last | (out.last if part.empty else 0)
            out.empty = out.empty and part.empty
        return out

    def _repeat(self, node: tree.Re2Repeat) -> _Part:
        parts = [self._part(node.node) for _ in range(copies(node))]
        if node.most < 0:
            self._edge(parts[-1].last, parts[-1].first)
            parts[-1].empty |= not node.least
            return self._sequence(parts)
        rest = _Part(True)  # the optional copies, joined from the last to the first
        for part in reversed(parts[node.least :]):
            rest = self._sequence([part, rest])
            rest.empty = True
        return self._sequence([*parts[: node.least], rest])

    def _edge(self, last: int, first: int) -> None:
        if last and first:
            self._edges[last] = self._edges.get(last, 0) | first


def _bits(positions: int) -> list[int]:
    out = []
    while positions:
        low = positions & -positions
        out.append(low.bit_length() - 1)
        positions ^= low
    return out


def _transitions(last: int, first: int) -> list[tuple[int, int]]:
    """Return (position, distance) of each transition from bits ``last`` to bits ``first``."""
    return [(p, q - p) for p in _bits(last) for q in _bits(first)]


def _shape(last: int, first: int) -> frozenset[int]:
    """Return the distances of an edge's transitions; empty for more than _FEW transitions."""
    if last.bit_count() * first.bit_count() > _FEW:
        return frozenset()
    return frozenset(distance for _, distance in _transitions(last, first))
