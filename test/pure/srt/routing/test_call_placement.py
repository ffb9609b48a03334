"""Parrot's Algorithm 1 against a plain transcription, and as the router's policy."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.core.call_hints import CallHint, PrefixHash
from sglang.srt.core.ints import ints
from sglang.srt.routing.call_placement import CallPlacement, EngineView, QueuedCall
from sglang.srt.routing.prefix_store import PrefixStore
from sglang.srt.routing.prompt import RoutedPrompt
from sglang.srt.routing.router import Router

CHAT = CallHint("chat", "latency")


class Transcript:
    """Algorithm 1 as the paper prints it. Engines are (name, capacity, latency tokens); a prefix
    is held where the set of its engine has it."""

    def __init__(self, engines: list[EngineView], held: dict[str, set[PrefixHash]]) -> None:
        self.size = {e.name: (e.capacity, e.latency_tokens) for e in engines}
        self.load = {e.name: e.load for e in engines}
        self.latency = {e.name: e.sensitive for e in engines}
        self.held = {e.name: set(held.get(e.name, ())) for e in engines}
        self.result: dict[int, str] = {}

    def run(self, calls: list[QueuedCall]) -> dict[int, str]:
        queue = list(calls)
        queue.sort(key=lambda r: (r.arrival, -r.hint.stage if r.hint else 1, r.id))  # 1
        for r in list(queue):  # 2
            if r not in queue:
                continue
            shared = self.shared(r, queue)  # 3
            with_context = {
                name for name, held in self.held.items() if any(p in held for p in r.prefixes)
            }
            chosen: list[QueuedCall] = []
            if r.group is not None:  # 4
                chosen = self.find([x for x in queue if x.group == r.group])  # 5
            elif shared:  # 6
                chosen = self.find(shared)  # 7
            elif with_context:  # 8
                chosen = self.find([r], with_context)  # 9
            if not chosen:  # 10
                chosen = self.find([r])  # 11
            for x in chosen:  # 12
                queue.remove(x)
        return self.result

    def shared(self, r: QueuedCall, queue: list[QueuedCall]) -> list[QueuedCall]:
        for length in range(len(r.prefixes), 0, -1):
            found = [x for x in queue if x.group is None and r.prefixes[length - 1] in x.prefixes]
            if len(found) > 1:
                return found
        return []

    def find(self, calls: list[QueuedCall], names: set[str] | None = None) -> list[QueuedCall]:
        urgent = any(self.urgent(r.hint) for r in calls)
        options = []
        for name, (capacity, small) in self.size.items():
            now = small if self.latency[name] else capacity
            then = small if urgent else now
            need = self.need(calls, name)
            if (names is None or name in names) and self.load[name] + need <= then:
                held = max(
                    p.tokens
                    for r in calls
                    for p in [*r.prefixes, PrefixHash(0, 0)]
                    if p.tokens == 0 or p in self.held[name]
                )
                options.append((now - then + need + max(self.load[name] - held, 0), name))
        if not options:
            return []
        first = min(options, key=lambda option: option[0])[1]
        self.load[first] += self.need(calls, first)
        self.latency[first] |= urgent
        for r in calls:
            self.held[first].update(r.prefixes)
            self.result[r.id] = first
        return calls

    def need(self, calls: list[QueuedCall], name: str) -> int:
        held, total = set(self.held[name]), 0
        for r in calls:
            total += r.tokens - max([p.tokens for p in r.prefixes if p in held], default=0)
            held.update(r.prefixes)
        return total

    @staticmethod
    def urgent(hint: CallHint | None) -> bool:
        if hint is None or hint.group != -1:
            return False
        return hint.kind == "latency" or hint.tpot_ms > 0


def random_calls(r: random.Random) -> list[QueuedCall]:
    calls = []
    for number in range(r.randint(0, 12)):
        path: tuple[int, ...] = ()
        prefixes: list[PrefixHash] = []
        for depth in range(r.randint(0, 3)):
            path = (*path, r.randint(0, 1))
            prefixes.append(PrefixHash(hash(path), 100 * (depth + 1)))
        hint = None
        if r.random() < 0.8:
            kind = r.choice(["", "latency", "throughput"])
            group, stage = r.choice([-1, -1, 0, 1]), r.randint(-1, 2)
            tpot = r.choice([0.0, 0.0, 30.0])
            hint = CallHint(r.choice("pq"), kind, tpot, 0.0, group, stage)  # type: ignore[arg-type]
        tokens = 100 * len(prefixes) + r.randint(1, 400)
        calls.append(QueuedCall(number, float(r.randint(0, 2)), tokens, tuple(prefixes), hint))
    r.shuffle(calls)
    return calls


def random_engines(r: random.Random) -> list[EngineView]:
    return [
        EngineView(f"e{n}", 2000, 400, r.choice([0, 0, 300, 1500]), r.random() < 0.3)
        for n in range(r.randint(1, 5))
    ]


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_placements_equal_a_plain_transcription(first: int) -> None:
    placed = waiting = 0
    for seed in range(first, first + 500):
        r = random.Random(seed)
        engines, calls, store = random_engines(r), random_calls(r), PrefixStore()
        held: dict[str, set[PrefixHash]] = {}
        for call in random_calls(r):
            engine = r.choice(engines).name
            store.add(call.prefixes, engine)
            held.setdefault(engine, set()).update(call.prefixes)
        want = Transcript(engines, held).run(calls)
        assert dict(CallPlacement(engines, store).schedule(calls)) == want, f"seed {seed}"
        placed, waiting = placed + len(want), waiting + len(calls) - len(want)
    assert placed > 1000
    assert waiting > 100


def call(number: int, tokens: int, hint: CallHint | None = None, *texts: str) -> QueuedCall:
    prefixes = tuple(PrefixHash(hash(texts[: n + 1]), 100 * (n + 1)) for n in range(len(texts)))
    return QueuedCall(number, 0.0, tokens, prefixes, hint)


def engines(count: int = 3) -> list[EngineView]:
    return [EngineView(f"e{n}", 2000, 400) for n in range(count)]


def fresh() -> CallPlacement:
    return CallPlacement(engines(), PrefixStore())


def test_latency_sensitive_calls_go_where_one_runs() -> None:
    placed = fresh().schedule([call(n, 100, CHAT) for n in range(4)])
    assert set(placed.values()) == {"e0"}
    found = fresh()
    found.schedule([call(n, 100, CHAT) for n in range(5)])
    assert sorted(found.placed.values()) == ["e0"] * 4 + ["e1"], "an engine's limit is exceeded"


def test_throughput_goes_where_no_latency_is_lost() -> None:
    views = engines()
    views[0].sensitive = True
    placed = CallPlacement(views, PrefixStore()).schedule([call(1, 600), call(2, 600)])
    assert set(placed.values()) == {"e1", "e2"}


def test_a_group_is_placed_as_a_whole_or_else_split() -> None:
    group = CallHint("book", "latency", group=0)
    whole = fresh().schedule([call(n, 100, group) for n in range(16)])
    assert len(set(whole.values())) == 1, "a group's members are not latency-sensitive themselves"
    split = fresh().schedule([call(n, 100, group) for n in range(30)])
    assert len(split) == 30
    assert len(set(split.values())) > 1


def test_what_fits_nowhere_waits_and_holds_no_one() -> None:
    placed = fresh().schedule([call(1, 5000), call(2, 100)])
    assert dict(placed) == {2: "e0"}


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 8))
def test_the_store_keeps_the_last_used(digests: list[int], most: int) -> None:
    store = PrefixStore(most)
    for digest in digests:
        store.add([PrefixHash(digest, 7)], "e")
    kept = list(dict.fromkeys(reversed(digests)))[:most]
    assert len(store) == len(kept)
    assert all(store.held([PrefixHash(digest, 7)]) == {"e": 7} for digest in kept)


# -- as a policy ---------------------------------------------------------------------------------


def router(count: int = 3) -> Router:
    found = Router("application")
    found.applications.latency_share = 0.2
    for number in range(count):
        found.add(f"e{number}", 2000, 64)
    return found


def prompt(size: int, hint: CallHint | None = None, *texts: str, seed: int = 0) -> RoutedPrompt:
    return RoutedPrompt(
        ints([seed]) * size, new_tokens=1, hint=hint, prefixes=call(0, size, None, *texts).prefixes
    )


def test_sharers_stay_together_and_others_do_not() -> None:
    found = router()
    first = [found.choose(prompt(200, None, "a"), 0.0).engine for _ in range(4)]
    other = [found.choose(prompt(200, None, "b", seed=1), 0.0).engine for _ in range(4)]
    assert len(set(first)) == len(set(other)) == 1
    assert first[0] != other[0]


def test_members_of_a_group_spread_unless_they_share() -> None:
    group = CallHint("book", "latency", group=3)
    found = router()
    apart = [found.choose(prompt(100, group, seed=n), 0.0).engine for n in range(6)]
    assert sorted(apart) == ["e0", "e0", "e1", "e1", "e2", "e2"]
    found = router()
    names = set()
    for number in range(6):
        tokens, prefixes = ints([9]) * 128 + ints([number]) * 10, (PrefixHash(7, 128),)
        routed = RoutedPrompt(tokens, new_tokens=1, hint=group, prefixes=prefixes)
        names.add(found.choose(routed, 0.0).engine)
    assert len(names) == 1


def test_a_fleet_hands_over_what_a_call_is() -> None:
    from sglang.srt.requests.completion.completion_request import CompletionRequest
    from sglang.srt.runtime.fleet.engine_fleet import _prompt

    prefixes = (PrefixHash(7, 100),)
    routed = _prompt(CompletionRequest(ints([1, 2]), hint=CHAT, prefixes=prefixes))
    assert (routed.hint, routed.prefixes) == (CHAT, prefixes)


def test_a_lost_engine_is_forgotten() -> None:
    found = router()
    name = found.choose(prompt(200, CallHint("p", group=0), "a"), 0.0).engine
    found.remove(name)
    assert not len(found.applications.store)
    assert found.choose(prompt(200, CallHint("p", group=0), "a"), 0.0).engine != name


def test_a_call_that_failed_takes_its_prefix_back() -> None:
    found = router()
    ticket = found.choose(prompt(200, None, "a"), 0.0)
    found.ended(ticket, 0.1, 0)
    assert not len(found.applications.store)


def test_where_no_engine_has_room_a_call_waits_at_the_least_full() -> None:
    found = router()
    names = [found.choose(prompt(190, CHAT, seed=n), 0.0).engine for n in range(9)]
    assert {names.count(name) for name in set(names)} == {3}
    assert all(found.engines.get(name).sensitive == 3 for name in set(names))  # type: ignore[union-attr]


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 2), st.booleans()), max_size=30))
def test_accounts_of_latency_sensitive_calls_balance(calls: list[tuple[int, int, bool]]) -> None:
    found, tickets = router(), list[Any]()
    for size, kind, answered in calls:
        hint = (None, CHAT, CallHint("book", "latency", group=0))[kind]
        ticket = found.choose(prompt(size, hint, "a"), 0.0)
        if answered:
            found.first_token(ticket, 0.1, 0)
        tickets.append(ticket)
    for ticket in tickets:
        found.ended(ticket, 1.0, 1)
        found.ended(ticket, 1.0, 1)
    assert all(engine.sensitive == engine.live == 0 for engine in found.engines)
