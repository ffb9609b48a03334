"""TierClaims, LowerClaims: claims of contexts that wait for a tool, on the trees of lower tiers.

``parked`` has the claims on the device's tree. This module has the claims of the same contexts on
their paths in lower tiers: such KV leaves the tier's least recently used order, and is evicted when
its value is lowest. The time that a page saves (computing minus loading) is the same for all pages,
so the order is that of the predicted time until the use (``park_policies.unclaimed_value``).

A claim does not lock. Only leaves are evicted, so pages shared with other contexts stay.
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

PAUSE = 0.5  # least seconds between two sorts of all claims, made when the tier evicts

# Argument: context id. Result: milliseconds that a token's KV saves, per second until its use.
Value: TypeAlias = Callable[[int], float]
# Result: the part of a path that the tier may keep, and the tier's namespace for it.
Known: TypeAlias = Callable[[Ints, Namespace], tuple[Ints, Namespace]]


class TierClaims:
    """The claims on one tier's tree.

    Args:
        tree: the tier's radix tree.
        device: the device's tree; its ``reuse`` is the chance that a page without a claim is used
            again. In the tier's tree each copy that lengthens a path would count as a use.
        value: returns the value of a token of a context's KV; ``inf``: the tool has answered.
        known: returns the part of a path that the tier may keep; None: the tier keeps all.
    """

    def __init__(
        self, tree: RadixTree, device: RadixTree, value: Value, costs: Costs, clock: Clock,
        known: Known | None = None,
    ) -> None:  # fmt: skip
        self._tree, self._device = tree, device
        self._value, self._costs, self._clock = value, costs, clock
        self._known = known
        self._nodes: dict[int, tuple[Context, RadixNode | None]] = {}  # by context id
        self._order: list[tuple[float, int]] = []  # (value, context id), the lowest value last
        self._sorted_at = -math.inf

    def __len__(self) -> int:
        return len(self._nodes)

    def place(self, context: Context) -> None:
        """Begin a claim of a context that has none on this tier."""
        self._nodes[context.id] = context, self._moved(context, None)
        self._sorted_at = -math.inf

    def drop(self, number: int) -> None:
        """End the claim of a context, if it has one."""
        _, node = self._nodes.pop(number, (None, None))
        if node is not None:
            self._tree.unclaim(node)

    def choose(self, oldest: RadixNode | None) -> RadixNode | None:
        """Return the leaf that the tier evicts next (``memory.radix.Choose``)."""
        now = self._clock.now()
        if now - self._sorted_at > PAUSE:
            self._sort(now)
        if oldest is not None and oldest.claims:  # the sort has moved a claim to it
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
        """Return the lowest value of a claim that has a leaf, and the leaf; or None."""
        while self._order:
            value, number = self._order[-1]
            leaf = self._leaf(number)
            if leaf is not None:
                return value, leaf
            self._order.pop()
        return None

    def _leaf(self, number: int) -> RadixNode | None:
        """Return the evictable leaf at the end of a claim's path, or None."""
        node = self._nodes[number][1] if number in self._nodes else None
        while node is not None and not node.pages:  # evicted
            node = node.parent
        return node if node is not None and not node.locks and not node.children else None

    def _sort(self, now: float) -> None:
        """Move the claims to the present ends of their paths in the tier, and sort them by value.
        Of several claims on one leaf, only the one with the highest value is in the order."""
        self._sorted_at, values = now, dict[RadixNode, tuple[float, int]]()
        for number, (context, node) in self._nodes.items():
            self._nodes[number] = context, self._moved(context, node)
            leaf = self._leaf(number)
            if leaf is not None:
                found = self._value(number), number
                values[leaf] = max(values.get(leaf, found), found)
        self._order = sorted(values.values(), reverse=True)

    def _moved(self, context: Context, node: RadixNode | None) -> RadixNode | None:
        """Move the claim to the last node of the context's path in the tree. Return the node."""
        tokens, space = context.key, context.namespace
        if self._known is not None:
            tokens, space = self._known(tokens, space)
        if node is not None and node.pages:
            return self._tree.claim_below(node, tokens)
        if node is not None:
            self._tree.unclaim(node)
        return self._tree.claim(tokens, space)

    def check(self) -> None:
        """Raise AssertionError if the claims here and those counted in the tree differ."""
        counts: dict[int, int] = {}
        for _, node in self._nodes.values():
            while node is not None:
                if node.pages:
                    counts[node.number] = counts.get(node.number, 0) + 1
                node = node.parent
        for node in self._tree.nodes():
            assert node.claims == counts.get(node.number, 0), "a claim on a tier without a context"


class LowerClaims:
    """The claims on host memory and on the disk. Without these tiers, or without claims, no work is
    done.

    Args:
        store: the store with the tiers.
        value: as in ``TierClaims``.
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
        if host is not None and not self._tiers[0]:  # no claims: back to least recently used
            host.choose = host.ghosts = None
            if host.below is not None:
                host.below.choose = None

    def check(self) -> None:
        """Raise AssertionError if the claims here and those counted in the trees differ."""
        for tier in self._tiers:
            tier.check()
