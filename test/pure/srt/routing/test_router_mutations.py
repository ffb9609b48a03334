"""The checks of the router can fail: each of these faults, put into the real code, is caught."""

from __future__ import annotations

import random

import pytest
from helpers.mutation import Mutation, become, constant, drop, mutate, never
from sglang.srt.core.ints import Ints, ints
from sglang.srt.routing import policies
from sglang.srt.routing.hash_ring import HashRing
from sglang.srt.routing.prefix_reports import PrefixEvicted, PrefixReports, PrefixStored
from sglang.srt.routing.prompt import FINE, RoutedPrompt, path_of
from sglang.srt.routing.routed_engine import RoutedEngine, Ticket
from sglang.srt.routing.router import Router

NAMES = ("e0", "e1", "e2", "e3")
SECOND = 1.0


def fleet(seed: int = 0, *, shared: bool = False) -> Router:
    router = Router(seed=seed, shared=shared)
    for name in NAMES:
        router.add(name, 100_000, 8)
    return router


def words(identity: int, blocks: int) -> Ints:
    return ints([identity]) * (blocks * FINE)


def answered(router: Router, tokens: Ints, now: float, cached: int = 0) -> Ticket:
    """Send a prompt, and end it with 20 tokens."""
    ticket = router.choose(RoutedPrompt(tokens), now)
    router.first_token(ticket, now + 0.01, cached)
    router.ended(ticket, now + 0.02, 20)
    return ticket


def accounts() -> None:
    """Nothing is left of requests that have ended, however they did."""
    router, chance = fleet(), random.Random(1)
    tickets = []
    for number in range(60):
        tokens = words(number % 5, 3) + words(number, 2)
        tickets.append(router.choose(RoutedPrompt(tokens), number * SECOND))
        for ticket in list(tickets):
            if chance.random() < 0.3:
                if chance.random() < 0.7:
                    router.first_token(ticket, number + 0.5, chance.randrange(FINE))
                router.ended(ticket, number + 0.6, 20)
                tickets.remove(ticket)
        assert router.engines.waiting == sum(len(each.waiting) for each in router.engines)
    for ticket in tickets:
        router.ended(ticket, 100.0, 0)
    assert router.engines.waiting == 0
    for engine in router.engines:
        assert (engine.load, engine.pending, engine.live) == (0, 0, 0)
    router.tree.check(router.engines.caches)


def conversations() -> None:
    """A conversation stays where its prefix is, unless the queue there is long. A named home is
    taken."""
    router = fleet()
    first = answered(router, words(1, 10), 0.0)
    for turn in range(4):
        tokens = words(1, 10) + words(2, turn)
        assert answered(router, tokens, 1.0 + turn, 9 * FINE).engine == first.engine
    for number in range(100):
        router.choose(RoutedPrompt(words(100 + number, 40)), 9.0, allowed={first.engine})
    assert router.choose(RoutedPrompt(words(1, 10)), 9.0).engine != first.engine
    router = fleet()
    home = answered(router, words(1, 4), 0.0).engine
    router.choose(RoutedPrompt(words(2, 900)), 1.0, allowed={home})  # one request, much to compute
    assert router.choose(RoutedPrompt(words(1, 4)), 1.0).engine != home
    for name in NAMES:
        assert fleet().choose(RoutedPrompt(words(1, 10), home=name), 0.0).engine == name


def batches() -> None:
    """Prompts that were sent count at once."""
    router = fleet()
    chosen = [router.choose(RoutedPrompt(words(1, 20)), 0.0) for _ in range(4)]
    assert len({ticket.engine for ticket in chosen}) == 1
    assert [ticket.cached for ticket in chosen] == [0, *[20 * FINE] * 3]


def corrections() -> None:
    """A first token says what is lost, and an end without a token that nothing was computed."""
    router = fleet()
    answered(router, words(1, 4) + words(2, 4), 0.0)
    ticket = answered(router, words(1, 4), 1.0, cached=0)  # the engine had evicted it
    assert ticket.cached == 4 * FINE
    again = router.choose(RoutedPrompt(words(1, 4) + words(2, 4)), 2.0)
    assert again.cached < 5 * FINE
    lost = router.choose(RoutedPrompt(words(7, 4)), 3.0)
    router.ended(lost, 3.1, 0)
    assert router.choose(RoutedPrompt(words(7, 4)), 3.2).cached == 0


def reports() -> None:
    """Reports are applied in order, and none after a gap before a snapshot."""
    router = fleet()
    path = path_of(words(1, 8))
    assert router.report("e2", 5, [PrefixStored(path)])
    assert router.holder(RoutedPrompt(words(1, 8)), NAMES) == "e2"
    assert not router.report("e2", 7, [PrefixEvicted(path, 0)])
    assert router.holder(RoutedPrompt(words(1, 8)), NAMES) == "e2"
    assert router.snapshot("e2", 7, [])
    assert router.holder(RoutedPrompt(words(1, 8)), NAMES) == ""


def agreement() -> None:
    """Routers that know nothing of each other send what is new to the same engines, to all of
    them."""
    one, other = fleet(1, shared=True), fleet(2, shared=True)
    chosen = []
    for number in range(40):
        pair = [answered(each, words(number, 6), 60.0 * number) for each in (one, other)]
        assert pair[0].engine == pair[1].engine
        chosen.append(pair[0].engine)
    assert set(chosen) == set(NAMES)
    for number in range(4, 16):
        one.add(f"e{number}", 100_000, 8)
    one.remove("e3")
    for number in range(40, 80):
        assert answered(one, words(number, 6), 60.0 * number).engine != "e3"


CHECKS = (accounts, conversations, batches, corrections, reports, agreement)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_router_is_sound(check: object) -> None:
    assert callable(check)
    check()


MUTATIONS = {
    "a first token leaves the queue's count": [
        Mutation(Router, "first_token", "_.engines.waiting -= 1", drop),
    ],
    "an end without a token leaves the queue's count": [
        Mutation(Router, "ended", "_.engines.waiting -= 1", drop),
    ],
    "memory of ended requests stays": [
        Mutation(RoutedEngine, "end", "_.live -= _", drop),
    ],
    "what was not cached is still believed": [
        Mutation(Router, "first_token", "_.lose(...)", drop),
    ],
    "a prompt that was never computed is believed": [
        Mutation(Router, "ended", "_.retract(...)", drop),
    ],
    "what was sent does not count": [
        Mutation(Router, "_send", "_.insert(...)", constant(0)),
    ],
    "the cache does not count": [
        Mutation(policies, "predicted_cost", "A - _.matched(_)", become("A")),
    ],
    "the wait does not count": [
        Mutation(policies, "predicted_cost", "_.wait(_)", constant(0.0)),
    ],
    "the home does not count": [
        Mutation(policies, "predicted_cost", "_ is _.home and _", never),
    ],
    "a gap is overlooked": [
        Mutation(PrefixReports, "apply", "A <= B < C", never),
    ],
    "routers do not agree": [
        Mutation(policies, "predicted_cost", "_ is _.agreed", never),
    ],
    "all that is new goes to one engine": [
        Mutation(HashRing, "at", "bisect(...)", constant(0)),
    ],
    "an engine that is gone is still agreed upon": [
        Mutation(HashRing, "remove", "_ is not _", become("True")),
    ],
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checks_catch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    caught = 0
    for check in CHECKS:
        try:
            check()
        except Exception:
            caught += 1
    assert caught, "no check has noticed it"
