"""Lost: a bounded record of the edges that the radix tree has evicted. Only explanations of misses
read it."""

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
    """Return the CRC-32 of tokens that follow others with the sum ``before``. The sum of a sequence
    is the same for all partitions into edges."""
    return zlib.crc32(tokens, before)


class Lost:
    """The edges cut last, by their start.

    Two prefixes of one length may have one checksum: an answer is wrong once in 2^32.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._edges: OrderedDict[tuple[Start, int], LostEdge] = OrderedDict()  # by start and node
        self._nodes: dict[Start, list[int]] = {}
        self._tokens = 0

    def note(self, start: Start, node: int, tokens: Ints, why: str) -> None:
        """Note that ``node``'s edge ``tokens`` is about to lose its end, or all of it."""
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
        """Follow the edges from ``depth`` on as far as they had ``tokens[:limit]``. Of several
        edges with one start the longest is followed.

        Returns (index of the first token that no edge had, the edge cut last at the first start).
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
