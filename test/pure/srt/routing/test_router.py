"""Router: accounts of tickets, reports, homes, and choices that depend on the seed alone."""

from __future__ import annotations

import pytest
from helpers.seeds import seeds
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sglang.srt.core.ints import Ints, ints
from sglang.srt.routing.policies import POLICIES
from sglang.srt.routing.prefix_reports import PrefixEvicted, PrefixStored
from sglang.srt.routing.prompt import COARSE, FINE, FINE_TOKENS, RoutedPrompt, path_of
from sglang.srt.routing.router import NoEngine, Router

NAMES = [f"e{number}" for number in range(20)]


def fleet(policy: str = "predicted", count: int = 4, seed: int = 0) -> Router:
    router = Router(policy, seed)
    for name in NAMES[:count]:
        router.add(name, 100_000, 8)
    return router


def words(identity: int, blocks: int) -> Ints:
    return ints([identity]) * (blocks * FINE)


def test_a_conversation_stays_without_a_key() -> None:
    router = fleet(count=20)
    tokens = words(1, 10)
    first = router.choose(RoutedPrompt(tokens), 0.0)
    router.first_token(first, 0.1, 0)
    router.ended(first, 0.2, 20)
    for turn in range(5):
        tokens = tokens + words(10 + turn, 2)
        ticket = router.choose(RoutedPrompt(tokens), 1.0 + turn)
        assert ticket.engine == first.engine
        assert ticket.cached >= 10 * FINE
        router.first_token(ticket, 1.1 + turn, ticket.cached)
        router.ended(ticket, 1.2 + turn, 20)


def test_a_long_queue_moves_a_conversation() -> None:
    router = fleet()
    home = router.choose(RoutedPrompt(words(1, 10)), 0.0).engine
    for number in range(100):  # nothing of them is ever answered
        router.choose(RoutedPrompt(words(100 + number, 40)), 0.0, allowed={home})
    assert router.choose(RoutedPrompt(words(1, 10)), 0.0).engine != home
    assert router.choose(RoutedPrompt(words(1, 10), home=home), 0.0).engine != home


def test_the_named_home_is_chosen_where_nothing_is_known() -> None:
    for name in NAMES:
        router = fleet(count=20)
        assert router.choose(RoutedPrompt(words(1, 10), home=name), 0.0).engine == name


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_seeds_choose_equally(policy: str) -> None:
    def chosen(seed: int) -> list[str]:
        router, found = fleet(policy, 20, seed), []
        for number in range(60):
            ticket = router.choose(
                RoutedPrompt(words(number % 7, 5) + words(number, 3)), number * 0.01
            )
            found.append(ticket.engine)
        return found

    assert chosen(1) == chosen(1)
    assert len(set(chosen(1))) > 1


@pytest.mark.parametrize("policy", POLICIES)
def test_only_allowed_engines_are_chosen(policy: str) -> None:
    router = fleet(policy, 20)
    for number in range(40):
        allowed = {NAMES[number % 20], NAMES[(number + 7) % 20], "gone"}
        prompt = RoutedPrompt(words(1, 5), affinity="key", home=NAMES[0])
        assert router.choose(prompt, 0.0, allowed).engine in allowed
    with pytest.raises(NoEngine, match="none of the 20 engines is allowed"):
        router.choose(RoutedPrompt(words(1, 5)), 0.0, allowed=["gone"])
    with pytest.raises(NoEngine, match="no engine"):
        Router(policy).choose(RoutedPrompt(words(1, 5)), 0.0)


def test_a_slow_engine_gets_less() -> None:
    router, counts = fleet(), dict.fromkeys(NAMES[:4], 0)
    for number in range(400):
        now = float(number)
        ticket = router.choose(RoutedPrompt(words(number, 20)), now)
        counts[ticket.engine] += 1
        router.first_token(ticket, now + (0.5 if ticket.engine == "e0" else 0.05), 0)
        router.ended(ticket, now + 0.9, 10)
    assert counts["e0"] * 3 < min(counts[name] for name in NAMES[1:4])


def test_an_aborted_request_leaves_no_belief() -> None:
    router = fleet()
    ticket = router.choose(RoutedPrompt(words(1, 10)), 0.0)
    router.ended(ticket, 0.1, 0)
    router.ended(ticket, 0.2, 0)
    router.first_token(ticket, 0.3, 0)
    assert router.tree.nodes == 0
    assert router.engines.waiting == 0


def test_fewer_cached_tokens_correct_the_tree() -> None:
    router = fleet(count=1)
    for identity in (2, 3):
        router.choose(RoutedPrompt(words(1, 4) + words(identity, 4)), 0.0)
    ticket = router.choose(RoutedPrompt(words(1, 4) + words(3, 4)), 1.0)
    assert ticket.cached == 8 * FINE
    router.first_token(ticket, 1.1, 2 * FINE)
    assert router.choose(RoutedPrompt(words(1, 4) + words(2, 4)), 2.0).cached == 4 * FINE
    assert router.choose(RoutedPrompt(words(1, 4) + words(3, 4)), 2.0).cached == 8 * FINE


def test_a_gap_in_reports_needs_a_snapshot() -> None:
    router, path, other = fleet(count=1), path_of(words(1, 8)), path_of(words(2, 8))
    assert router.report("e0", 5, [PrefixStored(path)])
    assert router.report("e0", 6, [PrefixEvicted(path, 4 * FINE)])
    assert router.report("e0", 6, [PrefixStored(path)])  # came before
    assert router.choose(RoutedPrompt(words(1, 8)), 0.0).cached == 4 * FINE
    assert not router.report("e0", 8, [PrefixStored(other)])
    assert not router.report("e0", 9, [])
    assert not router.snapshot("e0", 5, [])
    assert router.snapshot("e0", 9, [other])
    assert router.choose(RoutedPrompt(words(2, 8)), 0.0).cached == 8 * FINE
    assert router.report("e0", 10, [PrefixEvicted(other, 0)])


def test_namespaces_keep_to_few_engines() -> None:
    router, used = fleet(count=20), set()
    for number in range(60):
        now = float(number)
        ticket = router.choose(RoutedPrompt(words(number, 8), namespace="tenant"), now)
        used.add(ticket.engine)
        router.first_token(ticket, now + 0.05, 0)
        router.ended(ticket, now + 0.1, 10)
    assert len(used) <= 4


def test_long_prompts_have_coarse_blocks() -> None:
    tokens = ints(range(131_072))
    path = path_of(tokens)
    assert len(path.hashes) == FINE_TOKENS // FINE + (131_072 - FINE_TOKENS) // COARSE == 368
    assert path.tokens == 131_072
    changed = tokens[:]
    changed[100_000] = -1
    assert path_of(changed).hashes[:300] == path.hashes[:300]
    assert path_of(changed).hashes != path.hashes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Router("best"), "policy is 'best'; it must be one of predicted"),
        (lambda: fleet().add("e0", 1, 1), "engine 'e0' is there"),
        (lambda: fleet().add("new", 0, 1), "capacity_tokens of engine 'new' is 0"),
        (lambda: fleet().remove("gone"), "there is no engine 'gone'"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises((ValueError, KeyError), match=message):
        call()


class Routing(RuleBasedStateMachine):
    """Random histories: nothing is counted twice, and removed engines leave nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(most_nodes=12)
        self.tickets: list = []
        self.now = 0.0
        self.sequences: dict[str, int] = {}

    @rule(name=st.sampled_from(NAMES[:4]))
    def add_or_remove(self, name: str) -> None:
        if self.router.engines.get(name) is None:
            self.router.add(name, 10 * FINE, 2)
        else:
            self.router.remove(name)

    @rule(identity=st.integers(1, 3), tail=st.integers(1, 3), blocks=st.integers(0, 4))
    def choose(self, identity: int, tail: int, blocks: int) -> None:
        if len(self.router.engines):
            self.now += 0.1
            tokens = words(identity, blocks) + words(tail, 2)
            self.tickets.append(
                self.router.choose(RoutedPrompt(tokens, affinity=str(tail)), self.now)
            )

    @rule(index=st.integers(0, 20), cached=st.integers(0, 6))
    def first_token(self, index: int, cached: int) -> None:
        if self.tickets:
            ticket = self.tickets[index % len(self.tickets)]
            self.router.first_token(ticket, self.now + 0.05, cached * FINE)

    @rule(index=st.integers(0, 20))
    def ended(self, index: int) -> None:
        if self.tickets:
            self.router.ended(self.tickets[index % len(self.tickets)], self.now + 0.1, 30)

    @rule(name=st.sampled_from(NAMES[:4]), identity=st.integers(1, 3), kept=st.integers(0, 3),
          step=st.integers(0, 2))  # fmt: skip
    def report(self, name: str, identity: int, kept: int, step: int) -> None:
        if self.router.engines.get(name) is not None:
            number = self.sequences[name] = self.sequences.get(name, 0) + step
            path = path_of(words(identity, 4))
            events: list[PrefixStored | PrefixEvicted] = [
                PrefixStored(path),
                PrefixEvicted(path, kept * FINE),
            ]
            if not self.router.report(name, number, events):
                assert self.router.snapshot(name, number, [path])

    @invariant()
    def accounts_add_up(self) -> None:
        engines = self.router.engines
        self.router.tree.check(engines.caches)
        assert engines.waiting == sum(len(engine.waiting) for engine in engines)
        for engine in engines:
            assert engine.pending == sum(ticket.work for ticket in engine.waiting)
            assert engine.running >= 0

    def teardown(self) -> None:
        for ticket in self.tickets:
            self.router.ended(ticket, self.now + 1.0, 1)
        assert self.router.engines.waiting == 0
        for engine in self.router.engines:
            assert (engine.load, engine.live, engine.pending) == (0, 0, 0)


TestRouting = Routing.TestCase
TestRouting.settings = settings(
    max_examples=len(seeds(25, 200)), stateful_step_count=30, deadline=None
)


def test_the_holder_of_most_of_a_prompt_is_found() -> None:
    router = Router("round-robin")
    for name in ("a", "b"):
        router.add(name, 100_000, 8)
    first, second = words(1, 4), words(1, 2) + words(9, 4)
    at = [router.choose(RoutedPrompt(tokens), 0.0).engine for tokens in (first, second)]
    assert sorted(at) == ["a", "b"]
    assert router.holder(RoutedPrompt(first + words(3, 1)), ["a", "b"]) == at[0]
    assert router.holder(RoutedPrompt(second), ["a", "b"]) == at[1]
    assert router.holder(RoutedPrompt(second), [at[0]]) == at[0], "its beginning"
    assert not router.holder(RoutedPrompt(words(7, 3)), ["a", "b"])
