"""Lost: a bounded record of the edges evicted from the radix tree, used only to explain cache
misses."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.ints import Ints, common_prefix
from sglang.srt.core.namespace import Namespace

MAX_EDGES = 4096
MAX_TOKENS = 1 << 20
MAX_AT_A_POSITION = 8

# Start of an edge: namespace, number of tokens before it, their checksum, its first token.
Start: TypeAlias = tuple[Namespace, int, int, int]


@dataclass(slots=True)
class LostEdge:
    """An edge before it was cut: its tokens, the reason, and the moment of the last cut."""

    tokens: Ints
    why: str
    at: float


def checksum(tokens: Ints, before: int = 0) -> int:
    """Return the CRC-32 of tokens that follow a sequence with CRC-32 ``before``. The result does
    not depend on how the sequence is split into edges."""
    return zlib.crc32(tokens, before)


class Lost:
    """The most recently cut edges, by their start.

    Two prefixes of equal length may have equal checksums: an answer is wrong once in 2^32.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._edges: OrderedDict[tuple[Start, int], LostEdge] = OrderedDict()  # by start and node
        self._nodes: dict[Start, list[int]] = {}
        self._tokens = 0

    def note(self, start: Start, node: int, tokens: Ints, why: str) -> None:
        """Record that the end, or all, of ``tokens``, the edge of ``node``, is about to be cut."""
        edge = self._edges.get((start, node))
        if edge is not None:  # a part of the same edge was cut before
            edge.why, edge.at = why, self._clock.now()
            return
        if len(tokens) > MAX_TOKENS:
            return
        nodes = self._nodes.setdefault(start, [])
        if len(nodes) == MAX_AT_A_POSITION:
            self._drop((start, nodes[0]))
            nodes = self._nodes.setdefault(start, [])
        nodes.append(node)
        self._edges[start, node] = LostEdge(tokens[:], why, self._clock.now())
        self._tokens += len(tokens)
        while len(self._edges) > MAX_EDGES or self._tokens > MAX_TOKENS:
            self._drop(next(iter(self._edges)))

    def follow(
        self, namespace: Namespace, tokens: Ints, limit: int, depth: int, mark: int
    ) -> tuple[int, LostEdge | None]:
        """Follow recorded edges along ``tokens[depth:limit]``. Of several edges with one start, the
        one that matches most tokens is followed. ``mark``: checksum of ``tokens[:depth]``.

        Return (index of the first token that no edge had, edge cut last at ``depth``, or None).
        """
        last: LostEdge | None = None
        while depth < limit:
            start = (namespace, depth, mark, tokens[depth])
            edges = [self._edges[start, node] for node in self._nodes.get(start, ())]
            if not edges:
                break
            last = last or max(edges, key=lambda edge: edge.at)
            length, edge = max(
                ((common_prefix(edge.tokens, tokens, 0, depth), edge) for edge in edges),
                key=lambda found: found[0],
            )
            length = min(length, limit - depth)
            depth += length
            if length < len(edge.tokens):
                break
            mark = checksum(edge.tokens, mark)
        return depth, last

    def _drop(self, key: tuple[Start, int]) -> None:
        start, node = key
        self._tokens -= len(self._edges.pop(key).tokens)
        self._nodes[start].remove(node)
        if not self._nodes[start]:
            del self._nodes[start]
