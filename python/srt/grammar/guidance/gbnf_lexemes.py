"""The parts of a grammar that llguidance's lexer may read as a whole.

The lexer takes the longest match and never goes back. Such a match is right only where no
other reading of the same text ends sooner and goes on with a character that lengthens the match.
Here that is decided for a superset of what the grammar allows: what may stand after a character is
taken from the rules without regard to where they were called from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sglang.srt.grammar.guidance.gbnf import (
    GbnfChars,
    GbnfEither,
    GbnfNode,
    GbnfRef,
    GbnfRepeat,
    GbnfRun,
    GbnfSequence,
    GbnfText,
    children,
)
from sglang.srt.grammar.regex.charset import CharSet, single
from sglang.srt.grammar.regex.partition import partition

MOST_POSITIONS = 5000
MOST_ROUNDS = 20
MOST_COUNTED = 32  # a longer repetition is taken for an endless one
MOST_STEPS = 100_000


def wholes(rules: Mapping[str, GbnfNode], start: str) -> set[int]:
    """The ``id`` of each GbnfText and GbnfRun that may be one terminal."""
    return _Follow(rules).wholes(start)


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Follow:
    """Positions are the character sets of a grammar, numbered; a set of them is an int's bits.

    Attributes:
        inner: positions that follow a position inside its part [positions].
        leave: those that follow it outside [positions].
    """

    def __init__(self, rules: Mapping[str, GbnfNode]) -> None:
        self.rules = rules
        self.sets: list[CharSet] = []
        self.inner: list[int] = []
        self.positions: dict[int, range] = {}  # positions by id of a part
        self.exits: dict[int, range] = {}  # positions that may be its last
        for body in rules.values():
            self._number(body)
        self.leave = [0] * len(self.sets)
        self.firsts = dict.fromkeys(rules, 0)
        self.empty = dict.fromkeys(rules, False)
        self.after = dict.fromkeys(rules, 0)

    def _number(self, node: GbnfNode) -> None:
        low, last = 0, True
        if isinstance(node, GbnfChars):
            sets = [node.members]
        elif isinstance(node, GbnfText):
            sets = [single(ord(char)) for char in node.text]
        elif isinstance(node, GbnfRun):
            size = node.low if node.high is None else node.high
            exact = size <= MOST_COUNTED
            sets = [node.members] * (size if exact else 1)
            last = exact and node.high is not None
            low = node.low if exact else 1
        else:
            for child in children(node):
                self._number(child)
            return
        begin, end = len(self.sets), len(self.sets) + len(sets)
        self.positions[id(node)] = range(begin, end)
        self.exits[id(node)] = range(begin + low - 1 if low else end - 1, end)
        self.sets += sets
        self.inner += [1 << at for at in range(begin + 1, end)]
        self.inner.append(0 if last else 1 << (end - 1))

    def wholes(self, start: str) -> set[int]:
        if not 0 < len(self.sets) <= MOST_POSITIONS:
            return set()
        beside = self._beside(start) if self._settle() else None
        if beside is None:
            return set()
        owner = {
            position: part for part, positions in self.positions.items() for position in positions
            if self.inner[positions[-1]] or len(positions) > 1
        }  # fmt: skip
        heads = [_heads(one) for one in self.sets]
        inside = [_joined(heads, positions) for positions in self.inner]
        outside = [_joined(heads, positions) for positions in self.leave]
        found = set(owner.values())
        waiting = True
        while waiting:
            waiting = False
            ends = [
                out if owner.get(position) in found else out | inside[position]
                for position, out in enumerate(outside)
            ]
            for position, part in owner.items():
                # Whether a reading may end where the part would go on.
                if part in found and any(
                    ends[one] & inside[position] for one in bits(beside[position])
                ):
                    found.discard(part)
                    waiting = True
        return found

    # -- followers -------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """False where it takes too many rounds."""
        for _ in range(MOST_ROUNDS):
            before = dict(self.firsts), dict(self.empty)
            for name in reversed(list(self.rules)):
                self.empty[name] = self._empty(self.rules[name])
                self.firsts[name] = self._first(self.rules[name])
            if before == (self.firsts, self.empty):
                break
        else:
            return False
        for _ in range(MOST_ROUNDS):
            after = dict(self.after)
            for name, body in self.rules.items():
                self._visit(body, self.after[name])
            if after == self.after:
                return True
        return False

    def _empty(self, node: GbnfNode) -> bool:
        if isinstance(node, GbnfRef):
            return self.empty[node.name]
        if isinstance(node, GbnfEither):
            return any(self._empty(part) for part in node.parts)
        if isinstance(node, GbnfRepeat):
            return node.low == 0 or self._empty(node.part)
        return isinstance(node, GbnfSequence) and all(self._empty(part) for part in node.parts)

    def _first(self, node: GbnfNode) -> int:
        if isinstance(node, GbnfRef):
            return self.firsts[node.name]
        if isinstance(node, GbnfChars | GbnfText | GbnfRun):
            return 1 << self.positions[id(node)][0]
        found = 0
        for part in children(node):
            found |= self._first(part)
            if isinstance(node, GbnfSequence) and not self._empty(part):
                break
        return found

    def _visit(self, node: GbnfNode, then: int) -> None:
        """``then``: positions that may follow the node."""
        if isinstance(node, GbnfRef):
            self.after[node.name] |= then
        elif isinstance(node, GbnfChars | GbnfText | GbnfRun):
            for position in self.exits[id(node)]:
                self.leave[position] |= then
        elif isinstance(node, GbnfSequence):
            for part in reversed(node.parts):
                self._visit(part, then)
                then = self._first(part) | (then if self._empty(part) else 0)
        elif isinstance(node, GbnfRepeat):
            again = self._first(node.part) if node.high is None or node.high > 1 else 0
            parts = node.part.parts if isinstance(node.part, GbnfEither) else (node.part,)
            for part in parts:
                own = isinstance(part, GbnfRun) and part.looped
                self._visit(part, then | (again & ~self._first(part) if own else again))
        else:
            for part in children(node):
                self._visit(part, then)

    def _beside(self, start: str) -> list[int] | None:
        """Positions that may have read the same text, by position; None if they are too many."""
        sets = list(dict.fromkeys(self.sets))
        keys = [sum(1 << one for one in members) for members in partition(sets).members]
        key_of = dict(zip(sets, keys))
        positions: dict[CharSet, int] = {}
        for position, members in enumerate(self.sets):
            positions[members] = positions.get(members, 0) | 1 << position
        meets = {
            members: sum(there for other, there in positions.items() if key_of[other] & key)
            for members, key in key_of.items()
        }
        overlap = [meets[members] for members in self.sets]
        found = [0] * len(overlap)
        first = self.firsts[start]
        waiting = [(first, first)]
        steps = 0
        while waiting:
            left, right = waiting.pop()
            for one in bits(left):
                new = right & overlap[one] & ~found[one]
                found[one] |= new
                steps += 1
                for other in bits(new):
                    steps += 1
                    waiting.append((self._next(one), self._next(other)))
            if steps > MOST_STEPS:
                return None
        return found

    def _next(self, position: int) -> int:
        return self.inner[position] | self.leave[position]


def _joined(heads: list[int], positions: int) -> int:
    found = 0
    for position in bits(positions):
        found |= heads[position]
    return found


def _heads(members: CharSet) -> int:
    """Bytes that the characters of a set begin with in UTF-8, as bits."""
    found = 0
    for low, end in members.ranges():
        first, last = (chr(one).encode("utf-8", "surrogatepass")[0] for one in (low, end - 1))
        found |= (2 << last) - (1 << first)
    return found
