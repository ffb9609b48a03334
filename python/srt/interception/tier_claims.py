"""TierClaims, LowerClaims: claims of contexts that wait for a tool, on the trees of lower tiers.

A claim (``parked``) decides what the device gives up. What a lower tier has of the same path counts
here: it leaves the least recently used order of that tier, and goes when it saves least. What a
page saves there, computing less loading, is the same for all pages, so that the order is that of
the predicted seconds until its use (``park_policies.unclaimed_value``).

A claim locks nothing. Only leaves go, so that pages that others share cost a claim nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from sglang.srt.core.clock import Clock
from sglang.srt.core.context import Context
from sglang.srt.core.ints import Ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.interception.ghost_list import GhostList
from sglang.srt.interception.park_policies import unclaimed_value
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.memory.store import Store
from sglang.srt.schedule.costs import Costs

PAUSE = 0.5  # seconds between two looks at all claims, where the tier evicts at all

# By context: milliseconds saved by a token of its KV, per second until they are.
Value: TypeAlias = Callable[[int], float]
# The part of a path that the tier may keep, and the namespace by which it knows it.
Known: TypeAlias = Callable[[Ints, Namespace], tuple[Ints, Namespace]]


class TierClaims:
    """The claims on one tree.

    Args:
        tree: the tier's.
        device: the tree whose ``reuse`` is the chance that a page without a claim is used again. In
            the tier's own tree each copy that lengthens a path would count as a use.
        value: of a token of a context's KV; ``inf``: its tool has answered.
        known: None where the tier keeps every path.
    """

    def __init__(
        self, tree: RadixTree, device: RadixTree, value: Value, costs: Costs, clock: Clock,
        known: Known | None = None,
    ) -> None:  # fmt: skip
        self._tree, self._device = tree, device
        self._value, self._costs, self._clock = value, costs, clock
        self._known = known
        self._nodes: dict[int, tuple[Context, RadixNode | None]] = {}  # by context id
        self._order: list[tuple[float, int]] = []  # (value, context), the first to go at the end
        self._sorted_at = -math.inf

    def __len__(self) -> int:
        return len(self._nodes)

    def place(self, context: Context) -> None:
        """Begin a claim of a context that has none here."""
        self._nodes[context.id] = context, self._moved(context, None)
        self._sorted_at = -math.inf

    def drop(self, number: int) -> None:
        """End the claim of a context, if it has one."""
        _, node = self._nodes.pop(number, (None, None))
        if node is not None:
            self._tree.unclaim(node)

    def choose(self, oldest: RadixNode | None) -> RadixNode | None:
        """The leaf that the tier gives up next (``memory.radix.Choose``)."""
        now = self._clock.now()
        if now - self._sorted_at > PAUSE:
            self._sort(now)
        if oldest is not None and oldest.claims:  # since this look
            oldest = None
        found = self._first()
        if found is None and oldest is None:
            self._sort(now)
            found = self._first()
        if found is None:
            return oldest
        value, leaf = found
        if oldest is None:
            return leaf
        unclaimed = unclaimed_value(now - oldest.at, self._device.reuse, self._costs)
        return leaf if value < unclaimed else oldest

    def _first(self) -> tuple[float, RadixNode] | None:
        """The least value of a claim that has a leaf, with that leaf."""
        while self._order:
            value, number = self._order[-1]
            leaf = self._leaf(number)
            if leaf is not None:
                return value, leaf
            self._order.pop()
        return None

    def _leaf(self, number: int) -> RadixNode | None:
        """The evictable leaf at the end of a claim's path, None where there is none."""
        node = self._nodes[number][1] if number in self._nodes else None
        while node is not None and not node.pages:  # evicted
            node = node.parent
        return node if node is not None and not node.locks and not node.children else None

    def _sort(self, now: float) -> None:
        """Take into account what the tier has lost and gained of the paths since the last look, and
        order the claims. Of those with one leaf the one worth most counts: others share it."""
        self._sorted_at, values = now, dict[RadixNode, tuple[float, int]]()
        for number, (context, node) in self._nodes.items():
            self._nodes[number] = context, self._moved(context, node)
            leaf = self._leaf(number)
            if leaf is not None:
                found = self._value(number), number
                values[leaf] = max(values.get(leaf, found), found)
        self._order = sorted(values.values(), reverse=True)

    def _moved(self, context: Context, node: RadixNode | None) -> RadixNode | None:
        """The last node of the context's path that the tree has now. The claim moves to it."""
        tokens, space = context.key, context.namespace
        if self._known is not None:
            tokens, space = self._known(tokens, space)
        if node is not None and node.pages:
            return self._tree.claim_below(node, tokens)
        if node is not None:
            self._tree.unclaim(node)
        return self._tree.claim(tokens, space)

    def check(self) -> None:
        """Raise AssertionError where a claim counts in the tree and not here, or the reverse."""
        counts: dict[int, int] = {}
        for _, node in self._nodes.values():
            while node is not None:
                if node.pages:
                    counts[node.number] = counts.get(node.number, 0) + 1
                node = node.parent
        for node in self._tree.nodes():
            assert node.claims == counts.get(node.number, 0), "a claim on a tier that is nobody's"


class LowerClaims:
    """The claims on host memory and on the disk. Without these, and without claims, it costs
    nothing.

    Args:
        store: has the tiers.
        value: as of ``TierClaims``.
    """

    def __init__(self, store: Store, value: Value, costs: Costs, clock: Clock) -> None:
        self._store, self._value, self._costs, self._clock = store, value, costs, clock
        self._tiers: list[TierClaims] = []
        self._ghosts: GhostList | None = None

    def place(self, context: Context) -> None:
        """Begin a claim of a context on every tier."""
        host = self._store.host
        if host is None:
            return
        if not self._tiers:
            self._tiers.append(self._on(host.tree))
            self._ghosts = GhostList(host.tree.pool.size)
            if host.below is not None:
                self._tiers.append(self._on(host.below.tree, host.below.known))
        host.ghosts = self._ghosts
        for tier, level in zip(self._tiers, (host, host.below)):
            tier.place(context)
            assert level is not None
            level.choose = tier.choose

    def _on(self, tree: RadixTree, known: Known | None = None) -> TierClaims:
        return TierClaims(tree, self._store.tree, self._value, self._costs, self._clock, known)

    def drop(self, number: int) -> None:
        """End the claim of a context, if it has one."""
        if not self._tiers:
            return
        for tier in self._tiers:
            tier.drop(number)
        host = self._store.host
        if host is not None and not self._tiers[0]:  # the least recently used goes first again
            host.choose = host.ghosts = None
            if host.below is not None:
                host.below.choose = None

    def check(self) -> None:
        """Raise AssertionError where a claim counts in a tree and not here, or the reverse."""
        for tier in self._tiers:
            tier.check()
