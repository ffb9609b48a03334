"""Stay: the tokens made of one set of classes alone, and where the others leave that set.

In ``\\w{1,16}`` and ``[^"]*`` each state moves to the same next one by most of its classes. With W
those classes, a token of n characters of W is allowed where at least n such moves follow, and only
the tokens that leave W somewhere need a walk, from where they leave it. Without this a wide state
walks most of the vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sglang.srt.grammar.fsm.fold import Fold

OUTSIDE = np.iinfo(np.int16).max


class Stay:
    """One set W of classes over one folded trie.

    Attributes:
        within: whether a symbol is in W or, for an open character, may become so [symbols].
        depth: by node, its depth where all symbols down to it are within W, else OUTSIDE. One more
            element, OUTSIDE, stands for "no node" [nodes + 1].
        deepest: the largest depth below OUTSIDE.
        inner: the nodes within W, by depth; ``inner_cut[d]``: how many are less deep than d.
        border: the nodes that are the first outside W, by depth; ``border_at`` is how deep the
            node above is, and ``border_cut[d]`` how many of those are less deep than d.
    """

    def __init__(self, fold: Fold, classes: NDArray[np.bool_]) -> None:
        halves = (fold.sets & classes).any(axis=1)
        self.within = np.concatenate((classes, halves))
        self.depth = np.full(len(fold.symbols) + 1, OUTSIDE, dtype=np.int16)
        self.depth[0] = 0
        border, levels, counts = [], fold.levels, np.diff(fold.first)
        for above in range(len(levels) - 2):
            top, low, high = levels[above : above + 3]
            reached = np.repeat(self.depth[top:low] == above, counts[top:low])
            inner = self.within[fold.symbols[low:high]] & reached
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
