"""BlockIndex: changes of a radix tree's edges become events about blocks.

A block is ``size`` tokens of a prompt, from a multiple of ``size`` on. It is stored while the tree
holds the block and all tokens before it, so it belongs to the edge that holds its last token. Its
hash is a function of the hash before it and of its own tokens; the first one's, of the namespace.
Splits change edges and no block.

The index keeps the tokens and hashes of every edge of the tree, by the node's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from sglang.srt.core.ints import Ints, ints
from sglang.srt.kv_events.event_wire import (
    MEDIUM,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Events,
)

_MASK = (1 << 63) - 1  # a hash is a positive whole number of 64 bits, signed or not


class BlockScope(NamedTuple):
    """Separates blocks of equal tokens: the client's salt, and the adapter, by the number of its
    loading (0: none) and its name."""

    salt: str = ""
    adapter: int = 0
    name: str = ""

    @property
    def mark(self) -> str:
        """A digest of the salt, which stays secret; "" for none."""
        return blake2b(self.salt.encode(), digest_size=8).hexdigest() if self.salt else ""

    @property
    def seed(self) -> bytes:
        """Predecessor of the hash of a first block."""
        named = f"{self.adapter} {len(self.salt)} {self.salt}{self.name}"
        return blake2b(named.encode(), digest_size=8).digest()


class EdgeStored(NamedTuple):
    """``node`` was added below ``parent`` with a copy of its tokens; ``scope``: of a root's child,
    else None."""

    node: int
    parent: int
    tokens: Ints
    scope: BlockScope | None


class EdgeSplit(NamedTuple):
    """The first ``length`` tokens of ``node`` became the edge ``upper`` above it."""

    node: int
    upper: int
    length: int


class EdgeCut(NamedTuple):
    """The last ``length`` tokens of ``node`` were removed, or all that it has."""

    node: int
    length: int


class TreeCleared(NamedTuple):
    """All edges were forgotten; those that there are follow."""


EdgeChange = EdgeStored | EdgeSplit | EdgeCut | TreeCleared


class _Edge:
    __slots__ = ("depth", "hashes", "parent", "scope", "tokens")

    def __init__(self, parent: int, depth: int, tokens: Ints, scope: BlockScope) -> None:
        self.parent, self.depth, self.tokens, self.scope = parent, depth, tokens, scope
        self.hashes: list[int] = []  # one for each block whose last token is in the edge


class BlockIndex:
    """Blocks of one tree. ``size``: tokens a block.

    ``events`` raises KeyError for a change of an unknown edge.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._edges: dict[int, _Edge] = {}

    def events(self, changes: Sequence[EdgeChange]) -> Events:
        """The events of changes in their order. Where nothing is left, one: AllBlocksCleared."""
        out: Events = []
        for change in changes:
            if isinstance(change, EdgeStored):
                self._store(change, out)
            elif isinstance(change, EdgeCut):
                self._cut(change, out)
            elif isinstance(change, EdgeSplit):
                self._split(change)
            else:
                self._edges.clear()
                out = [AllBlocksCleared()]
        if not self._edges and len(out) > 1:
            return [AllBlocksCleared()]
        return out

    def _store(self, change: EdgeStored, out: Events) -> None:
        above = self._edges.get(change.parent)
        if above is None:
            assert change.scope is not None, "an edge below one that is not known"
            edge = _Edge(change.parent, 0, change.tokens, change.scope)
        else:
            depth = above.depth + len(above.tokens)
            edge = _Edge(change.parent, depth, change.tokens, above.scope)
        self._edges[change.node] = edge
        count = self._ends(edge, len(edge.tokens))
        if not count:
            return
        size, scope = self.size, edge.scope
        before = edge.depth % size
        tokens = self._tail(above, before) + edge.tokens[: count * size - before]
        parent = self._last_hash(above)
        chained = scope.seed if parent is None else parent.to_bytes(8, "big")
        for i in range(count):
            block = tokens[i * size : (i + 1) * size].tobytes()
            digest = blake2b(chained + block, digest_size=8).digest()
            found = int.from_bytes(digest, "big") & _MASK
            chained = found.to_bytes(8, "big")
            edge.hashes.append(found)
        first = (scope.mark,) if scope.mark and parent is None else None
        out.append(
            BlockStored(
                list(edge.hashes), parent, [token & 0xFFFFFFFF for token in tokens], size,
                scope.adapter or None, MEDIUM, scope.name or None,
                None if first is None else [first, *[None] * (count - 1)],
            )
        )  # fmt: skip

    def _cut(self, change: EdgeCut, out: Events) -> None:
        edge = self._edges[change.node]
        kept = len(edge.tokens) - change.length
        stays = self._ends(edge, kept)
        gone = edge.hashes[stays:]
        if kept > 0:
            del edge.tokens[kept:], edge.hashes[stays:]
        else:
            del self._edges[change.node]
        if gone:
            out.append(BlockRemoved(gone[::-1], MEDIUM))  # none is without the one before it

    def _split(self, change: EdgeSplit) -> None:
        edge, length = self._edges[change.node], change.length
        upper = _Edge(edge.parent, edge.depth, edge.tokens[:length], edge.scope)
        count = self._ends(edge, length)
        upper.hashes, edge.hashes = edge.hashes[:count], edge.hashes[count:]
        edge.parent, edge.depth, edge.tokens = (
            change.upper,
            edge.depth + length,
            edge.tokens[length:],
        )
        self._edges[change.upper] = upper

    def _ends(self, edge: _Edge, length: int) -> int:
        """Number of blocks that end in the first ``length`` tokens of an edge."""
        return (edge.depth + length) // self.size - edge.depth // self.size

    def _last_hash(self, edge: _Edge | None) -> int | None:
        """Hash of the last block that ends at the end of ``edge`` or before it."""
        while edge is not None and not edge.hashes:
            edge = self._edges.get(edge.parent)
        return None if edge is None else edge.hashes[-1]

    def _tail(self, edge: _Edge | None, count: int) -> Ints:
        """The last ``count`` tokens up to the end of ``edge``."""
        tail = ints()
        while edge is not None and len(tail) < count:
            tail = edge.tokens[max(len(edge.tokens) - count + len(tail), 0) :] + tail
            edge = self._edges.get(edge.parent)
        return tail
