"""Lost: what the radix tree held and gave up, so that a miss can be explained. Bounded; nothing
but explanations reads it."""

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
MAX_AT_A_PLACE = 8

# Namespace, tokens before, checksum of these, first token.
Place: TypeAlias = tuple[Namespace, int, int, int]


@dataclass(slots=True)
class Edge:
    """An edge as it was before it was cut, why that happened, and when last (of the clock)."""

    tokens: Ints
    why: str
    at: float


def checksum(tokens: Ints, before: int = 0) -> int:
    """CRC-32 of tokens that follow others with the sum ``before``; however they are cut up, the
    sum of a sequence is the same."""
    return zlib.crc32(tokens, before)


class Lost:
    """The edges cut last, by where they began.

    Two prefixes of one length may have one checksum: an answer is wrong once in 2^32.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._edges: OrderedDict[tuple[Place, int], Edge] = OrderedDict()  # by place and node
        self._nodes: dict[Place, list[int]] = {}
        self._tokens = 0

    def note(self, place: Place, node: int, tokens: Ints, why: str) -> None:
        """The edge ``tokens`` of ``node`` at ``place`` is about to lose its end, or all of it."""
        edge = self._edges.get((place, node))
        if edge is not None:  # it has lost more of its end
            edge.why, edge.at = why, self._clock.now()
            return
        if len(tokens) > MAX_TOKENS:
            return
        nodes = self._nodes.setdefault(place, [])
        if len(nodes) == MAX_AT_A_PLACE:
            self._drop((place, nodes[0]))
            nodes = self._nodes.setdefault(place, [])
        nodes.append(node)
        self._edges[place, node] = Edge(tokens[:], why, self._clock.now())
        self._tokens += len(tokens)
        while len(self._edges) > MAX_EDGES or self._tokens > MAX_TOKENS:
            self._drop(next(iter(self._edges)))

    def follow(
        self, namespace: Namespace, tokens: Ints, limit: int, depth: int, mark: int
    ) -> tuple[int, Edge | None]:
        """How far the edges, one behind another from ``depth`` on, had ``tokens[:limit]``: at least
        so far, since of several at a place the longest is taken.

        Returns (index of the first token they had not, the edge cut last at the first place).
        """
        last: Edge | None = None
        while depth < limit:
            place = (namespace, depth, mark, tokens[depth])
            edges = [self._edges[place, node] for node in self._nodes.get(place, ())]
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

    def _drop(self, key: tuple[Place, int]) -> None:
        place, node = key
        self._tokens -= len(self._edges.pop(key).tokens)
        self._nodes[place].remove(node)
        if not self._nodes[place]:
            del self._nodes[place]
