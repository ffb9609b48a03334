"""The trie of a vocabulary over the character classes of one automaton.

Tokens whose characters have the same classes share a node, so that a walk visits only differences
that matter to the grammar. A token with a character of no class is dropped, because no state allows
it. The trie is built level by level from the token table: exact, without hashing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa
from sglang.srt.grammar.fsm.token_table import OPEN, TokenTable
from sglang.srt.grammar.fsm.utf8 import span

Int32Array = NDArray[np.int32]
BoolArray = NDArray[np.bool_]
OUTSIDE = np.iinfo(np.int16).max
DENSE = 1 << 22  # limit of the cells of a table for distinct keys; above it, keys are sorted


class ClassTrie:
    """Nodes in level order. The children of a node are adjacent; node 0 is the root.

    Attributes:
        symbols: by node, a class, or for an incomplete (open) character ``classes`` + its row of
            ``sets`` [nodes].
        first: first child of each node, and ``nodes`` at the end [nodes + 1].
        levels: first node of each depth, and ``nodes`` at the end.
        sets: True for the classes that an open character may have [rows, classes].
        node: node of each token, ``nodes`` for none [vocabulary size, padded to whole words].
        ids: tokens, in the order of their nodes [tokens].
        begins: index in ``ids`` of each node's first token, and their number [nodes + 1]."""

    def __init__(self, automaton: CharacterDfa, table: TokenTable) -> None:
        self.classes = automaton.classes
        symbols, self.sets = _symbols(automaton, table)
        nodes = self._grow(table, symbols[table.places], self.classes + len(self.sets))
        at = nodes[table.ends]
        kept = np.flatnonzero(at > 0)
        at = at[kept]
        self.node = np.full(32 * table.words, len(self.symbols), dtype=np.int64)
        self.node[table.ids[kept]] = at
        self.ids = table.ids[kept[_order(at)]]
        count = np.bincount(at, minlength=len(self.symbols))
        self.begins = np.concatenate(([0], np.cumsum(count))).astype(np.int32)

    @property
    def nbytes(self) -> int:
        parts = (self.symbols, self.first, self.sets, self.node, self.ids, self.begins)
        return sum(part.nbytes for part in parts)

    def children(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all children of ``nodes``, and the index in ``nodes`` of each child's parent."""
        return spread(self.first, nodes)

    def _grow(self, table: TokenTable, symbols: Int32Array, width: int) -> Int32Array:
        """Set ``symbols`` and ``first``. Return the node for each node of the table, -1: none."""
        nodes = np.full(len(symbols), -1, dtype=np.int32)
        nodes[0] = 0
        labels, parents, base, made = [np.full(1, -1, np.int32)], [np.full(1, -1, np.int32)], 0, 1
        self.levels = [0, 1]
        for low, high in zip(table.levels[1:], table.levels[2:]):
            above, symbol = nodes[table.parents[low:high]], symbols[low:high]
            live = np.flatnonzero((above | symbol) >= 0)
            if not len(live):
                break
            key = (above[live] - base).astype(np.int64) * width + symbol[live]
            distinct, inverse = _distinct(key, (made - base) * width)
            nodes[low + live] = made + inverse
            labels.append((distinct % width).astype(np.int32))
            parents.append((distinct // width + base).astype(np.int32))
            base, made = made, made + len(distinct)
            self.levels.append(made)
        self.symbols = np.concatenate(labels)
        below = np.bincount(np.concatenate(parents)[1:], minlength=made)
        self.first = np.concatenate(([1], 1 + np.cumsum(below))).astype(np.int32)
        return nodes


class Subtrie:
    """The part of a trie whose characters belong to a set W of classes.

    Attributes:
        within: True if a symbol is in W or, for an open character, may be [symbols].
        depth: by node, its depth if all symbols down to the node are within W, else OUTSIDE. The
            last element, OUTSIDE, stands for "no node" [nodes + 1].
        deepest: the largest depth of a node within W.
        inner: nodes within W, sorted by depth. ``inner_cut[d]``: number of them above depth d.
        border: first nodes outside W, sorted by depth. ``border_at``: depth of each one's parent.
            ``border_cut[d]``: number of parents above depth d.
    """

    def __init__(self, trie: ClassTrie, classes: NDArray[np.bool_]) -> None:
        halves = (trie.sets & classes).any(axis=1)
        self.within = np.concatenate((classes, halves))
        self.depth = np.full(len(trie.symbols) + 1, OUTSIDE, dtype=np.int16)
        self.depth[0] = 0
        border, levels, counts = [], trie.levels, np.diff(trie.first)
        for above in range(len(levels) - 2):
            top, low, high = levels[above : above + 3]
            reached = np.repeat(self.depth[top:low] == above, counts[top:low])
            inner = self.within[trie.symbols[low:high]] & reached
            self.depth[low:high][inner] = above + 1
            border.append(low + np.flatnonzero(reached & ~inner))
        self.border = np.concatenate(border) if border else np.zeros(0, dtype=np.int64)
        self.border_at = np.repeat(np.arange(len(border)), [len(part) for part in border])
        self.inner = np.flatnonzero(self.depth < OUTSIDE)
        depths = self.depth[self.inner]
        self.deepest = int(depths[-1])
        ends = np.arange(len(levels) + 2)
        self.inner_cut = np.searchsorted(depths, ends)
        self.border_cut = np.searchsorted(self.border_at, ends)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.depth, self.inner, self.border, self.border_at))


def spread(
    first: Int32Array, nodes: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the concatenated ranges ``first[n] .. first[n + 1]`` of ``nodes``, and the index in
    ``nodes`` of each element's n."""
    low = first[nodes].astype(np.int64)
    count = first[nodes + 1] - low
    source = np.repeat(np.arange(len(nodes)), count)
    return np.arange(len(source)) + (low - np.cumsum(count) + count)[source], source


def _order(keys: Int32Array) -> NDArray[np.int64]:
    """Return the stable ``argsort`` of keys >= 0, 16 bits at a time, which numpy sorts by radix."""
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    high = (keys >> 16).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")] if high.any() else order


def _distinct(key: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """Return the distinct values of ``key`` < ``size``, ascending, and each key's index in them."""
    if size > DENSE and size > 16 * len(key):
        return np.unique(key, return_inverse=True)
    seen = np.zeros(size, dtype=np.bool_)
    seen[key] = True
    distinct = np.flatnonzero(seen)
    rank = np.empty(size, dtype=np.int32)
    rank[distinct] = np.arange(len(distinct))
    return distinct, rank[key]


def _symbols(automaton: CharacterDfa, table: TokenTable) -> tuple[Int32Array, BoolArray]:
    """Return the symbol of each of ``table.points``, DEAD for none, and ``ClassTrie.sets``."""
    plain = int(np.searchsorted(table.points, OPEN))
    at = np.searchsorted(automaton.edges, table.points[:plain], side="right") - 1
    symbols = np.full(len(table.points), DEAD, dtype=np.int32)
    symbols[:plain] = automaton.labels[at]
    rows: dict[bytes, int] = {}
    begin = np.searchsorted(automaton.edges, table.spans[:, 0], side="right") - 1
    end = np.searchsorted(automaton.edges, table.spans[:, 1], side="right")
    for number, (low, high) in enumerate(zip(begin.tolist(), end.tolist())):
        within = _named(automaton.labels[low:high])
        if len(within):
            row = rows.setdefault(within.tobytes(), len(rows))
            symbols[plain + number] = automaton.classes + row
    sets = np.zeros((len(rows), automaton.classes), dtype=np.bool_)
    for data, row in rows.items():
        sets[row, np.frombuffer(data, dtype=np.int32)] = True
    return symbols, sets


def reachable(automaton: CharacterDfa, partial: int) -> Int32Array:
    """Return the classes, ascending, that an open character ``partial`` may have."""
    low, high = span(partial)
    begin = int(np.searchsorted(automaton.edges, low, side="right")) - 1
    end = int(np.searchsorted(automaton.edges, high, side="right"))
    return _named(automaton.labels[begin:end])


def _named(labels: Int32Array) -> Int32Array:
    """Return the distinct labels, ascending, without DEAD."""
    found = labels if len(labels) == 1 else np.unique(labels)
    named: Int32Array = found[found != DEAD]
    return named
