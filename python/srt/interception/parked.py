"""Parked: the claims of contexts that wait for a tool, and the treatment of their KV (InferCept).

    parked      the tool is running: the context has a claim on its path in the radix tree
    returned    the context's next request waits to be admitted; its KV is evicted last
    (ended)     the request was admitted, the context was closed, or the deadline has passed

A claim does not lock its path. It takes the path's leaves out of the least recently used order, and
the policy (``park_policies``) decides when they are evicted.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sglang.srt.core.clock import Clock
from sglang.srt.core.context import Context
from sglang.srt.core.messages import Park
from sglang.srt.interception.durations import Durations
from sglang.srt.interception.park_policies import (
    POLICIES,
    REFRESH,
    ParkedItem,
    ParkingView,
    claimed_value,
    unclaimed_value,
)
from sglang.srt.interception.tier_claims import LowerClaims
from sglang.srt.interception.waste import added, chunks, waste_chunk_discard, waste_preserve
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.memory.store import Store, Transfer
from sglang.srt.schedule.costs import Costs

MANY = 500  # claims above which the policy decides less often, to cost no more time a second
GROWTH = 0.1  # relative growth of the elapsed time after which the prediction is renewed


@dataclass(slots=True, eq=False)
class PathClaim:
    """One context's claim.

    Attributes:
        node: last node of the context's path when the claim began.
        began: time when the claim and the tool call began.
        ends: time of the deadline.
        tokens: tokens of the path when the claim began.
        pages: pages that only this context needs, at the last check.
        returned: whether the tool has answered.
        lacking: tokens of the path without a copy in host memory, at the last check.
        remaining: predicted seconds left at time ``predicted``.
    """

    context: Context
    verb: Park
    node: RadixNode
    began: float
    ends: float
    tokens: int
    pages: int = 0
    returned: bool = False
    lacking: int = 0
    remaining: float = 0.0
    predicted: float = -math.inf


class Parked:
    """All claims on the device's radix tree.

    Args:
        policy: name in ``POLICIES``.
        costs: learnt costs of passes and copies.
        token_bytes: bytes of a token's KV.

    Attributes:
        durations: durations of earlier calls, by owner and tool.
        expired: number of claims that have reached their deadline, since the start.
        yielded: number of leaves with a claim that were evicted, since the start.
        seconds: sum of the durations of all calls that have ended.
    """

    def __init__(
        self, policy: str, store: Store, costs: Costs, clock: Clock, token_bytes: int = 0
    ) -> None:
        self.policy = POLICIES[policy]
        self._ignored = policy == "none"
        self._store, self._costs, self._clock = store, costs, clock
        self.durations = Durations()
        self.expired = self.yielded = 0
        self.seconds = 0.0
        self._token_bytes, self._waste = token_bytes, 0.0  # in token milliseconds
        self._others, self._chunk, self._held_at = 0, 1, 0.0
        self._claims: dict[int, PathClaim] = {}  # by context id
        self._numbers = itertools.count()
        self._deadlines: list[tuple[float, int, PathClaim]] = []  # a heap; claims may have ended
        self._held = 0  # sum of the claims' ``pages``
        self._order: list[PathClaim] = []  # the claim to evict first is last
        self._ordered_at = self._acted_at = -math.inf
        self._lower = LowerClaims(store, self._tier_value, costs, clock)

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def counts(self) -> dict[str, float]:
        """Gauges and counters, by name."""
        return {
            "parked": len(self._claims), "parked_tokens": self._held * self._store.page_size,
            "parked_expired": self.expired, "parked_yielded": self.yielded,
            "parked_seconds": self.seconds,
            "parked_waste": self._waste * self._token_bytes / 1e12,
        }  # fmt: skip

    # -- the life of a claim ---------------------------------------------------------------------

    def park(self, verb: Park, context: Context) -> None:
        """Begin a claim of an idle context. Raises ValueError for negative or infinite seconds."""
        for name, value in (("expected", verb.expected), ("deadline", verb.deadline)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; it must be a number of seconds from 0 on")
        self.end(context.id)
        node = self._store.tree.claim(context.key, context.namespace)
        if node is None:
            return
        now = self._clock.now()
        if not self._claims:
            self._held_at = now
        claim = self._claims[context.id] = PathClaim(
            context, verb, node, now, now + verb.deadline, node.depth + len(node.tokens)
        )
        claim.pages, claim.lacking = self._exclusive(claim), self._store.lacking(node)
        self._held += claim.pages
        heapq.heappush(self._deadlines, (claim.ends, next(self._numbers), claim))
        self._ordered_at = -math.inf
        self._store.choose = None if self._ignored else self._choose
        if self.policy.soft and not self._ignored:
            self._lower.place(context)

    def _tier_value(self, number: int) -> float:
        """Return the value of a token of a context's KV in a lower tier (``tier_claims``)."""
        claim = self._claims[number]
        if claim.returned:
            return math.inf
        return claimed_value(self._remaining(claim, self._clock.now()), self._costs)

    def returned(self, context: int) -> None:
        """Note that the next request of a context has arrived, so the tool has answered."""
        claim = self._claims.get(context)
        if claim is not None and not claim.returned:
            self._learn(claim)
            claim.returned = True

    def admitted(self, context: Context) -> None:
        """End the claim of a context that was admitted and has locked its KV on the device. KV that
        neither the device nor host memory has is computed again; add its waste (equation 4)."""
        claim = self._claims.get(context.id)
        if claim is None:
            return
        found = context.saved + self._store.on_host(context, claim.tokens)
        lost = claim.tokens - max(found, context.saved)
        if lost > 0:
            n = chunks(lost, self._chunk)
            self._waste += waste_chunk_discard(lost, self._others, n, added(self._costs))
        self.end(context.id)

    def end(self, context: int) -> None:
        """End the claim of a context, if it has one."""
        claim = self._claims.pop(context, None)
        if claim is None:
            return
        if not claim.returned:
            self._learn(claim)
        self._held -= claim.pages
        self._store.tree.unclaim(claim.node)
        self._lower.drop(context)
        if not self._claims:
            self._order.clear()
            self._deadlines.clear()
            self._store.choose = None

    def expire(self) -> None:
        """End the claims whose deadline has passed. Must be called at each plan."""
        now = self._clock.now()
        if not self.policy.soft:  # equation 2
            held = self.withheld * self._store.page_size
            self._waste += waste_preserve(held, 1e3 * max(now - self._held_at, 0.0))
            self._held_at = now
        while self._deadlines and self._deadlines[0][0] <= now:
            claim = heapq.heappop(self._deadlines)[2]
            number = claim.context.id
            if self._claims.get(number) is claim and not claim.returned:
                self.expired += 1
                self.end(number)

    def _learn(self, claim: PathClaim) -> None:
        seconds = self._clock.now() - claim.began
        self.seconds += seconds
        self.durations.add(claim.verb.owner, claim.verb.tool, seconds)

    # -- a pass ----------------------------------------------------------------------------------

    @property
    def withheld(self) -> int:
        """Number of pages that other requests may use only if nothing can run without them."""
        if self.policy.soft:
            return 0
        return sum(self._exclusive(c) for c in self._claims.values() if not c.returned)

    def act(self, transfer: Transfer | None, others: int, chunk: int, taken: int) -> None:
        """Let the policy decide, and copy, evict or release the KV of parked contexts as decided.
        The planned pass must have no rows yet.

        Args:
            transfer: budget of the pass for copies; None without host memory.
            others: number of tokens of the running contexts.
            chunk: tokens that the pass can compute besides one for each running context.
            taken: tokens that the pass computes.
        """
        now, size = self._clock.now(), self._store.page_size
        self._others, self._chunk = others, chunk
        if now - self._acted_at < self.policy.pause * self._rarer:
            return
        self._acted_at = now
        view = ParkingView(
            self._costs, others, chunk, max(self._store.available - self._held, 0) * size, taken,
            transfer.storable * size if transfer is not None else 0,
            transfer.backlog if transfer is not None else 0,
        )  # fmt: skip
        made = self.policy.decide(self._items, view)
        for number in made.copy:
            self._copy(self._claims[number])
        for number in made.swap:
            self._copy(self._claims[number])
            if not self._claims[number].lacking:
                self._give_up(self._claims[number])
        for number in made.discard:
            self._give_up(self._claims[number])
        for number in made.release:
            self.end(number)

    @property
    def _rarer(self) -> float:
        """Factor by which the time between two decisions is longer with many claims."""
        return max(len(self._claims) / MANY, 1.0)

    def _items(self) -> list[ParkedItem]:
        """Return the contexts with KV of their own on the device whose tool has not answered."""
        now = self._clock.now()
        items = [self._item(claim, now) for claim in self._claims.values() if not claim.returned]
        return [item for item in items if item.tokens]

    def _item(self, claim: PathClaim, now: float) -> ParkedItem:
        pages = self._exclusive(claim)
        self._held += pages - claim.pages
        claim.pages = pages
        return ParkedItem(
            claim.context.id, pages * self._store.page_size, claim.lacking, now - claim.began,
            self._remaining(claim, now),
        )  # fmt: skip

    def _remaining(self, claim: PathClaim, now: float) -> float:
        """Return the predicted seconds until the tool answers."""
        elapsed = now - claim.began
        if elapsed - (claim.predicted - claim.began) > GROWTH * elapsed:
            verb = claim.verb
            claim.remaining = self.durations.remaining(
                verb.owner, verb.tool, elapsed, verb.expected
            )
            claim.predicted = now
        return max(claim.remaining - (now - claim.predicted), 0.0)

    def _copy(self, claim: PathClaim) -> None:
        """Plan a copy of the claim's path to host memory."""
        leaf = self._leaf(claim)
        if leaf is not None:
            self._store.copy(leaf, unbounded=self.policy.synchronous)
            claim.lacking = self._store.lacking(leaf)

    def _give_up(self, claim: PathClaim) -> None:
        """Evict the pages that only this context needs."""
        tree = self._store.tree
        while (leaf := self._leaf(claim)) is not None and leaf.claims == 1:
            tree.cut(leaf, len(leaf.pages))

    # -- order of eviction ----------------------------------------------------------------------

    def _choose(self, oldest: RadixNode | None) -> RadixNode | None:
        """Return the leaf to evict next (``memory.radix.Choose``): ``oldest``, the least recently
        used leaf without a claim, or a leaf with a claim."""
        if oldest is not None and not self.policy.soft:
            return oldest
        claim, leaf = self._first(must=oldest is None)
        if (
            claim is None
            or leaf is None
            or (oldest is not None and not self._gives_way(claim, oldest))
        ):
            return oldest
        self.yielded += 1
        return leaf

    def _gives_way(self, claim: PathClaim, oldest: RadixNode) -> bool:
        """Return whether the KV of a claim has a lower value than a leaf without a claim."""
        if claim.returned:
            return False
        now, costs = self._clock.now(), self._costs
        value = self.policy.value(self._item(claim, now), costs)
        return value < unclaimed_value(now - oldest.at, self._store.tree.reuse, costs)

    def _first(self, must: bool) -> tuple[PathClaim | None, RadixNode | None]:
        """Return the claim to evict first and its leaf. ``must``: if none, sort again and retry."""
        for again in (False, True):
            if again or self._clock.now() - self._ordered_at > REFRESH * self._rarer:
                self._sort()
            while self._order:
                claim = self._order[-1]
                alive = self._claims.get(claim.context.id) is claim
                leaf = self._leaf(claim) if alive else None
                if leaf is not None:
                    return claim, leaf
                self._order.pop()
            if not must:  # by the last sort, no claim has a leaf
                break
        return None, None

    def _sort(self) -> None:
        """Sort the claims by value, the lowest last. Claims that have returned have the highest
        values, and among them the oldest context."""
        now, costs = self._clock.now(), self._costs
        self._ordered_at = now
        values = {
            claim: (1, -claim.context.id)
            if claim.returned
            else (0, self.policy.value(self._item(claim, now), costs))
            for claim in self._claims.values()
            if claim.pages or self._leaf(claim) is not None
        }
        self._order = sorted(values, key=values.__getitem__, reverse=True)

    def _leaf(self, claim: PathClaim) -> RadixNode | None:
        """Return the evictable leaf at the end of a claim's path, or None."""
        node = claim.node
        while not node.pages:  # evicted
            if node.parent is None:
                return None
            node = node.parent
        return node if not node.locks and not node.children else None

    def _exclusive(self, claim: PathClaim) -> int:
        """Return the number of pages that only this context needs."""
        node, pages = self._leaf(claim), 0
        while node is not None and node.parent and node.claims == 1 and not node.locks:
            if len(node.children) > 1:
                break
            pages += len(node.pages)
            node = node.parent
        return pages

    def shown(self, limit: int) -> list[dict[str, Any]]:
        """Return at most ``limit`` claims as plain data, the oldest first."""
        now, found = self._clock.now(), []
        for claim in islice(self._claims.values(), limit):
            more = {"tool": claim.verb.tool, "returned": claim.returned}
            found.append(self._item(claim, now)._asdict() | more)
        return found

    def check(self) -> None:
        """Raise AssertionError if the claims here and those counted in the tree differ."""
        counts: dict[int, int] = {}
        self._lower.check()
        assert self._held == sum(claim.pages for claim in self._claims.values()), "pages of claims"
        for number, claim in self._claims.items():
            assert not claim.context.active, "a claim of a context that runs"
            assert self._store.contexts.get(number) is claim.context, "a claim without its context"
            step: RadixNode | None = claim.node
            while step is not None:
                if step.pages:
                    counts[step.number] = counts.get(step.number, 0) + 1
                step = step.parent
        for node in self._store.tree.nodes():
            assert node.claims == counts.get(node.number, 0), "a claim without a context"
