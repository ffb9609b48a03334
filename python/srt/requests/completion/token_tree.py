"""Token trees: forwards that score texts with common beginnings and compute each beginning once.

    rows      [5 7 9]  [5 7 2 4]  [5 8]          after the root r
    computed  r  5  7  2                         the tokens that another token follows
    read      5 | 7 8 | 2 9 | 4                  tokens whose log-probability is read after each

The tokens of a forward are in depth-first order. A token attends to the root and the tokens between
the root and itself, and to no other tokens of the tree. The last token of a row is not computed;
only its log-probability is read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isqrt

from sglang.srt.core.ints import Ints, ints

MOST_TOKENS = 1024  # most tokens of a forward
MOST_BITS = 1 << 22  # most bits of a mask, which the engine unpacks


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Rows of at least one token each. All rows follow the first ``behind`` tokens of a prompt."""

    rows: Sequence[list[int]]
    behind: int


@dataclass(slots=True)
class TreeForward:
    """One forward that scores some rows.

    Attributes:
        tokens, positions: token ids and positions of the forward, int32.
        parents: index of each token's parent; -1: none, it attends only to the visible slots.
        targets: pairs (index of a token, id that follows it), in the order of their addition.
        rows: for each row of the forward, its number and the indices of its targets.
    """

    tokens: Ints = field(default_factory=ints)
    positions: Ints = field(default_factory=ints)
    parents: list[int] = field(default_factory=list)
    targets: list[tuple[int, int]] = field(default_factory=list)
    rows: list[tuple[int, list[int]]] = field(default_factory=list)

    def add(self, token: int, position: int, parent: int) -> int:
        """Add a token, and return its index."""
        self.tokens.append(token)
        self.positions.append(position)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def mask(self, visible: int) -> bytes:
        """Return ``ForwardTokens.mask``. All tokens attend to the first ``visible`` slots."""
        stride = -(-(visible + len(self.tokens)) // 8)
        sees = list[int]()
        for index, parent in enumerate(self.parents):
            before = (1 << visible) - 1 if parent < 0 else sees[parent]
            sees.append(before | 1 << (visible + index))
        return b"".join(bits.to_bytes(stride, "little") for bits in sees)

    @property
    def order(self) -> list[int]:
        """Indices of the targets, sorted by token: the order of ``ForwardTokens.targets``."""
        return sorted(range(len(self.targets)), key=lambda target: self.targets[target][0])

    def pairs(self) -> Ints:
        """Return ``ForwardTokens.targets``."""
        return ints(value for target in self.order for value in self.targets[target])

    def take(self, values: array[float]) -> list[tuple[int, list[float]]]:
        """Return each row's number and the log-probabilities of its tokens after the root, from
        the values of ``pairs``."""
        found = dict(zip(self.order, values))
        return [(row, [found[target] for target in path]) for row, path in self.rows]


def most_tokens(visible: int, context_length: int) -> int:
    """Return the most tokens that one forward after ``visible`` slots may have."""
    bits = (isqrt(visible * visible + 4 * MOST_BITS) - visible) // 2
    return min(MOST_TOKENS, bits, context_length - visible)


def tree_forwards(rows: Sequence[list[int]], root: int, depth: int, most: int) -> list[TreeForward]:
    """Return the forwards that score rows of tokens. A forward has at most ``most`` tokens, and
    computes a common beginning of its rows once.

    Args:
        rows: rows of at least one token each.
        root: the token before every row, at position ``depth - 1``; -1: there is none, and the
            first token of each row is not scored.
        depth: position of the first token of each row.

    Raises ValueError if a single row has more than ``most`` tokens.
    """
    forwards, walk = list[TreeForward](), _Walk(root, depth, most)
    for number in sorted(range(len(rows)), key=lambda index: rows[index]):
        if not walk.fits(rows[number]):
            forwards.append(walk.forward)
            walk = _Walk(root, depth, most)
            if not walk.fits(rows[number]):
                raise ValueError(
                    f"row {number} has {len(rows[number])} tokens; {most} fit in one forward"
                )
        walk.add(number, rows[number])
    return [forward for forward in (*forwards, walk.forward) if forward.targets]


class _Walk:
    """Builds one forward from rows in sorted order.

    The path is the last row. ``_path``: its tokens. ``_nodes``: each token's index in the forward,
    -1 if the token is not computed. ``_reads``: index of the target that reads it, -1 for none.
    """

    def __init__(self, root: int, depth: int, most: int) -> None:
        self.forward = TreeForward()
        self._root, self._depth, self._most = root, depth, most
        self._path: list[int] = []
        self._nodes: list[int] = []
        self._reads: list[int] = []
        if root >= 0:
            self.forward.add(root, depth - 1, -1)

    def fits(self, row: Sequence[int]) -> bool:
        """Whether the forward has room for the row."""
        if not self.forward.rows:
            return len(row) <= self._most
        return len(self.forward.tokens) + len(row) - self._shared(row) <= self._most

    def _shared(self, row: Sequence[int]) -> int:
        """Return the number of leading tokens that the row has in common with the last row."""
        for index, (a, b) in enumerate(zip(self._path, row)):
            if a != b:
                return index
        return min(len(self._path), len(row))

    def add(self, number: int, row: Sequence[int]) -> None:
        """Add a row. Rows must be added in sorted order."""
        forward, shared = self.forward, self._shared(row)
        del self._path[shared:], self._nodes[shared:], self._reads[shared:]
        for index in range(shared, len(row)):
            parent = self._computed(index - 1)
            read = -1
            if parent >= 0:
                read = len(forward.targets)
                forward.targets.append((parent, row[index]))
            self._path.append(row[index])
            self._nodes.append(-1)
            self._reads.append(read)
        forward.rows.append((number, [read for read in self._reads if read >= 0]))

    def _computed(self, index: int) -> int:
        """Return the index in the forward of the path's token ``index`` (-1: of the root). Add the
        token to the forward if it is missing."""
        if index < 0:
            return 0 if self._root >= 0 else -1
        if self._nodes[index] < 0:
            parent = self._nodes[index - 1] if index else self._computed(-1)
            self._nodes[index] = self.forward.add(self._path[index], self._depth + index, parent)
        return self._nodes[index]
