"""Claims on the tree of a lower tier: what goes first there, and what a claim costs."""

from __future__ import annotations

import math
import random

from sglang.srt.core.clock import ManualClock
from sglang.srt.core.context import Context
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.namespace import BASE, Namespace
from sglang.srt.interception.tier_claims import PAUSE, Known, TierClaims
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import RadixTree
from sglang.srt.schedule.costs import Costs


class Tier:
    """A tier of few pages of one token. ``values``: of the claims, by context."""

    def __init__(self, pages: int = 30, known: Known | None = None) -> None:
        self.clock = ManualClock()
        self.tree = RadixTree(PagePool(pages), 1, self.clock)
        self.device = RadixTree(PagePool(1), 1, self.clock)
        self.values: dict[int, float] = {}
        self.costs = Costs()
        self.claims = TierClaims(
            self.tree, self.device, self.values.__getitem__, self.costs, self.clock, known
        )

    def store(self, tokens: Ints, namespace: Namespace = BASE) -> None:
        """Copy a path here, evicting if need be."""
        node, held = self.tree.lock(tokens, len(tokens), namespace)
        need = len(tokens) - len(held)
        choose = self.claims.choose if len(self.claims) else None
        self.tree.evict(need - self.tree.pool.free, choose=choose)
        pages = self.tree.pool.take(min(need, self.tree.pool.free))
        node, _, _ = self.tree.publish(node, tokens, len(held), pages)
        self.tree.unlock(node)
        self.check()

    def park(self, number: int, tokens: Ints, value: float, namespace: Namespace = BASE) -> None:
        self.values[number] = value
        context = Context(number, tokens, namespace, (), ())
        context.head = tokens[:]
        self.claims.place(context)

    def has(self, tokens: Ints, namespace: Namespace = BASE) -> int:
        return self.tree.match(tokens, len(tokens), namespace)[0]

    def check(self) -> None:
        self.claims.check()
        self.tree.pool.check(self.tree.check())


def path(first: int, count: int = 10) -> Ints:
    return ints(range(100 * first, 100 * first + count))


def three(values: tuple[float, float, float]) -> Tier:
    """A full tier of three paths with claims of these values, 1 stored first."""
    tier = Tier()
    for number, value in enumerate(values, 1):
        tier.store(path(number))
        tier.park(number, path(number), value)
        tier.clock.advance(1.0)
    return tier


def test_what_saves_least_goes_first() -> None:
    tier = three((3.0, 1.0, 2.0))
    tier.store(path(4, 15))
    assert [tier.has(path(n)) for n in (1, 2, 3)] == [10, 0, 5]


def test_what_has_its_answer_goes_last_but_goes() -> None:
    tier = three((math.inf, 1.0, 2.0))
    tier.store(path(4, 30))
    assert [tier.has(path(n)) for n in (1, 2, 3)] == [0, 0, 0], "a claim is no pin"
    assert tier.has(path(4, 30)) == 30


def test_an_old_path_goes_before_one_with_a_claim() -> None:
    tier = Tier()
    for number in (1, 2, 3):
        tier.store(path(number))
    tier.clock.advance(60.0)
    tier.park(1, path(1), tier.costs.forward.b / 5.0)  # used in 5 s; the others' age is 60 s
    tier.store(path(4))
    assert [tier.has(path(n)) for n in (1, 2, 3)] == [10, 0, 10]


def test_a_claim_far_from_its_use_goes_before_a_new_path() -> None:
    tier = Tier()
    tier.store(path(1))
    tier.park(1, path(1), tier.costs.forward.b / 600.0)
    tier.clock.advance(1.0)
    for number in (2, 3):
        tier.store(path(number))
    tier.clock.advance(1.0)
    tier.store(path(4))
    assert [tier.has(path(n)) for n in (1, 2, 3)] == [0, 10, 10]


def test_shared_pages_cost_a_claim_nothing() -> None:
    """The claim worth most counts where two have one leaf. Inner pages stay."""
    tier = Tier()
    tier.store(path(1))
    for number, value in ((1, 1.0), (2, 9.0)):
        tier.park(number, path(1), value)
    tier.store(path(3))
    tier.park(3, path(3), 5.0)
    tier.store(path(3) + path(4, 5))
    tier.park(4, path(3) + path(4, 5), 7.0)
    tier.store(path(5, 10))
    assert tier.has(path(1)) == 10
    assert tier.has(path(3) + path(4, 5)) == 10, "the end of 4 went, the beginning of both did not"


def test_a_claim_follows_its_path_as_it_is_copied_and_lost() -> None:
    tier = Tier()
    tier.park(1, path(1), 1.0)
    tier.park(2, path(2), 5.0)
    for count in (4, 8, 10):
        tier.store(path(1, count))
        tier.store(path(2, count))
        tier.clock.advance(2 * PAUSE)
    tier.store(path(3, 15))
    assert (tier.has(path(1)), tier.has(path(2))) == (5, 10)
    tier.tree.clear()
    tier.check()
    tier.store(path(1))
    tier.clock.advance(2 * PAUSE)
    tier.store(path(4, 25))
    tier.claims.drop(1)
    tier.claims.drop(2)
    tier.check()


def test_a_tier_may_know_a_path_by_another_name() -> None:
    space = Namespace("digest")
    tier = Tier(known=lambda tokens, namespace: (tokens[:8], space))
    tier.store(path(1, 8), space)
    tier.park(1, path(1), 9.0, Namespace("salt"))
    for number in (2, 3):
        tier.clock.advance(60.0)
        tier.store(path(number), space)
    tier.store(path(4), space)
    assert tier.has(path(1, 8), space) == 8


def test_random_claims_keep_the_books() -> None:
    for seed in range(30):
        r = random.Random(seed)
        tier, parked = Tier(r.randint(5, 40)), set[int]()
        paths = [ints(r.choices(range(3), k=r.randint(1, 12))) for _ in range(8)]
        for step in range(60):
            tier.clock.advance(r.choice([0.0, 0.1, 1.0]))
            number = r.randrange(8)
            if number in parked and r.random() < 0.4:
                parked.remove(number)
                tier.claims.drop(number)
            elif number not in parked and r.random() < 0.5:
                parked.add(number)
                tier.park(number, paths[number], r.choice([0.01, 1.0, math.inf]))
            elif step % 17 == 16:
                tier.tree.prune({r.randrange(tier.tree.pool.size)})
            else:
                tier.store(paths[number])
            tier.check()
        for number in parked:
            tier.claims.drop(number)
        tier.check()
        tier.tree.clear()
        assert tier.tree.pool.free == tier.tree.pool.size
