"""RadixNode: a node of the prefix cache (``memory/radix``), with the edge that leads to it."""

from __future__ import annotations

from sglang.srt.core.ints import Ints
from sglang.srt.memory.lost import checksum

Key = int | bytes


class RadixNode:
    """A node, the edge that leads to it, and its children. The path before the edge has ``depth``
    tokens, whose checksum is ``mark``."""

    __slots__ = (
        "_summed", "at", "children", "claims", "depth", "locks", "mark", "number", "pages",
        "parent", "tokens", "used",
    )  # fmt: skip

    def __init__(self, number: int, parent: RadixNode | None, tokens: Ints, pages: Ints) -> None:
        self.number = number
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.children: dict[Key, RadixNode] = {}
        self.locks = 0
        self.claims = 0
        self.used = 0  # number of the last use, for LRU
        self.at = 0.0  # moment of the last use
        self.depth: int = 0 if parent is None else parent.depth + len(parent.tokens)
        self.mark: int = 0 if parent is None else parent.sum
        self._summed = (0, self.mark)  # tokens of the edge, and the checksum at their end

    @property
    def sum(self) -> int:
        """Checksum of the path's tokens to the end of the edge. Edges may shrink, never grow."""
        if self._summed[0] != len(self.tokens):
            self._summed = (len(self.tokens), checksum(self.tokens, self.mark))
        return self._summed[1]
