"""Contexts that wait for a tool: what memory takes from them, and what a claim costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.fake_worker import FakeWorker, fake_info
from helpers.wishes import TEXT
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.clock import ManualClock
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Control,
    Done,
    Event,
    Fill,
    Generate,
    Open,
    Park,
    Reply,
)
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline
from sglang.srt.interception import parked as parked_module
from sglang.srt.interception.park_policies import REFRESH, RETENTION
from sglang.srt.schedule.costs import LineFit

GOAL = Generate(SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True))


class Desk:
    """An engine of few tokens, and contexts of ten that were computed one after another."""

    def __init__(self, policy: str = "priced", capacity: int = 50, host: int = 0) -> None:
        self.clock = ManualClock()
        self.worker = FakeWorker(1)
        info = fake_info(capacity, 1, host_capacity=host, kv_bytes_per_token=1000)
        schedule = ScheduleConfig(schedule_policy="fcfs", park_policy=policy)
        self.engine = EngineCore(Inline(self.worker), info, schedule, TEXT, clock=self.clock)
        self.parked = self.engine.planner.parked

    def compute(self, *contexts: int, close: bool = False) -> list[Done]:
        for number in contexts:
            tokens = ints([number % 90] * 9 + [1])
            known = number in self.engine.store.contexts
            verbs = [] if known else [Open(number, tokens.tobytes())]
            self.engine.handle([*verbs, Advance(number, number, GOAL, close=close)])
        done = self.run()
        assert len(done) == len(contexts)
        return done

    def compute_beside(self, *contexts: int) -> None:
        """Compute contexts while another one runs."""
        left = set(contexts)
        for number in contexts:
            tokens = ints([number % 90] * 9 + [1])
            self.engine.handle([Open(number, tokens.tobytes()), Advance(number, number, GOAL)])
        while left:
            left -= {event.request for event in self.engine.step() if isinstance(event, Done)}

    def run(self) -> list[Done]:
        events: list[Event] = []
        while self.engine.busy:
            self.clock.advance(1.0)
            events += self.engine.step()
            self.engine.store.check()
            self.parked.check()
        return [event for event in events if isinstance(event, Done)]

    def cached(self, context: int) -> int:
        """Tokens of a context that the device has."""
        known = self.engine.store.contexts[context]
        return self.engine.store.match(known, len(known.tokens)).tokens


def test_what_is_parked_outlasts_what_has_ended() -> None:
    desk = Desk()
    desk.compute(1, 2)
    desk.engine.handle([Park(1, expected=5.0)])  # older than 2, which has no claim
    desk.compute(3, 4, 5)
    desk.compute(6, close=True)
    assert desk.cached(1) == 10
    assert desk.cached(2) < 10


def test_without_the_policy_the_oldest_goes_first() -> None:
    desk = Desk("none")
    desk.compute(1, 2)
    desk.engine.handle([Park(1, expected=5.0)])
    desk.compute(3, 4, 5)
    desk.compute(6, close=True)
    assert desk.cached(1) < 10


def test_of_two_parked_ones_the_later_return_goes_first() -> None:
    desk = Desk(capacity=40)
    desk.compute(1, 2)
    desk.engine.handle([Park(1, "slow", expected=500.0), Park(2, "fast", expected=20.0)])
    desk.compute(3)
    desk.engine.handle([Close(3)])
    desk.compute(4, 5, close=True)
    assert desk.cached(1) < desk.cached(2) == 10
    assert desk.parked.yielded


def test_claims_block_nobody() -> None:
    desk = Desk(capacity=40)
    desk.compute(1, 2, 3)
    desk.engine.handle([Park(number, expected=1.0) for number in (1, 2, 3)])
    assert desk.compute(4, close=True)
    assert desk.engine.stats.plan_misses == 0


@pytest.mark.parametrize("policy", ["discard", "heuristic"])
def test_a_prompt_for_which_kv_is_given_up_is_computed_at_once(policy: str) -> None:
    """The plan counted on the KV of a parked context, which its policy then takes."""
    desk = Desk(policy)
    desk.compute(1)
    desk.engine.handle([Park(1, expected=500.0)])
    tokens = desk.engine.store.contexts[1].tokens[:10]
    desk.engine.handle([Open(2, tokens.tobytes()), Advance(2, 2, Fill(), close=True)])
    passes = desk.worker.passes
    desk.engine.step()
    assert desk.worker.passes == passes + 1, "a step did nothing"
    assert len(desk.run()) <= 1
    assert 2 not in desk.engine.store.contexts


def test_preserved_kv_gives_way_where_nobody_can_go_on() -> None:
    desk = Desk("preserve", capacity=35)
    desk.compute(1, 2, 3)
    desk.engine.handle([Park(number, expected=1.0) for number in (1, 2, 3)])
    desk.clock.advance(3.0)
    desk.engine.handle([Park(3, expected=1.0)])  # the youngest
    desk.compute(4, close=True)
    assert [desk.cached(number) for number in (1, 2)] == [10, 10]
    assert desk.cached(3) < 10


def test_retained_kv_is_withheld_for_a_time() -> None:
    desk = Desk("ttl", capacity=35)
    desk.compute(1, 2)
    desk.engine.handle([Park(1, expected=1.0)])
    desk.compute(3, close=True)
    assert (desk.cached(1), len(desk.parked)) == (10, 1)
    desk.clock.advance(RETENTION)
    desk.compute(4, close=True)
    assert len(desk.parked) == 0
    assert desk.parked.durations.remaining("", "", 0.0) >= RETENTION
    desk.compute(5, 6, close=True)
    assert desk.cached(1) < 10


def test_discarded_kv_is_free_at_once_but_for_what_others_share() -> None:
    desk = Desk("discard")
    desk.compute(1, 2)
    shared = desk.engine.store.contexts[1].tokens[:6]
    desk.engine.handle([Open(9, shared.tobytes()), Advance(9, 9, GOAL)])
    desk.run()
    desk.engine.handle([Park(9, expected=1.0), Park(1, expected=1.0)])
    desk.compute(3, close=True)
    assert desk.cached(2) == 10
    assert desk.cached(1) <= 6


def test_swapped_kv_is_loaded_and_not_computed() -> None:
    desk = Desk("swap", host=100)
    desk.compute(1)
    desk.engine.handle([Park(1, expected=1.0)])
    desk.compute(2, close=True)
    assert desk.cached(1) == 0
    more = ints([7, 8]).tobytes()
    desk.engine.handle([Append(1, more), Advance(1, 5, GOAL, close=True)])
    (done,) = desk.run()
    assert done.stats.loaded_tokens > 0


def test_a_swap_in_parts_frees_nothing_before_the_last_part() -> None:
    desk = Desk("min-waste", host=100)
    desk.compute(1)
    desk.engine.planner.movable = 4
    desk.engine.planner.costs.forward = LineFit(0.0, 50.0)
    goal = Generate(SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True))
    desk.engine.handle([Open(2, ints([2] * 10).tobytes()), Advance(2, 2, goal, close=True)])
    desk.engine.step()
    desk.engine.handle([Park(1, expected=500.0)])
    seen = set()
    while desk.engine.busy:
        desk.engine.step()
        copied = min(desk.engine.store.counts["stored_tokens"], 10)
        seen.add((copied, desk.cached(1)))
    assert seen == {(4, 10), (8, 10), (10, 0)}


def test_copies_out_leave_time_to_prompts_that_wait_for_copies() -> None:
    """A pass takes a millisecond a token, and a copy half of one. The tokens of a prompt that waits
    give other copies no time."""
    desk = Desk("eager", capacity=100, host=300)
    desk.compute(1)
    goal = Generate(SamplingParams(max_new_tokens=60, temperature=0.0, ignore_eos=True))
    desk.engine.handle([Open(90, ints([80] * 10).tobytes()), Advance(90, 90, goal, close=True)])
    desk.compute_beside(2, 3, 4, 5, 6, 7, 8, 9)
    assert desk.cached(1) == 0
    desk.engine.handle([Park(number, expected=9.0) for number in (7, 8, 9)])
    desk.engine.planner.costs.forward = LineFit(2.0, 1.0)
    desk.engine.planner.costs.copy = LineFit(0.0, 0.5)
    desk.engine.handle([Append(1, ints([7, 8]).tobytes()), Advance(1, 100, GOAL, close=True)])
    first = len(desk.worker.moves)
    (done,) = (event for event in desk.run() if event.request == 100)
    assert done.stats.loaded_tokens == 10
    for moves, rows in list(zip(desk.worker.moves, desk.worker.batches))[first:]:
        copied = len(moves.stores) + len(moves.loads) if moves is not None else 0
        assert 0.5 * copied <= 2.0 + sum(count for _, count in rows)


@pytest.mark.parametrize(("many", "decisions"), [(500, 8), (2, 4)])
def test_the_policy_decides_more_rarely_about_many(
    many: int, decisions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked_module, "MANY", many)
    desk, calls = Desk("priced", capacity=100), []
    desk.compute(1, 2, 3, 4)
    decide = desk.parked.policy.decide
    desk.parked.policy = replace(
        desk.parked.policy, decide=lambda items, view: calls.append(1) or decide(items, view)
    )
    desk.engine.handle([Park(number, expected=9.0) for number in (1, 2, 3, 4)])
    goal = Generate(SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True))
    desk.engine.handle([Open(9, ints([9] * 5).tobytes()), Advance(9, 9, goal, close=True)])
    while desk.engine.busy:
        desk.clock.advance(1.01 * REFRESH)
        desk.engine.step()
    assert len(calls) == decisions


def wasted(desk: Desk) -> float:
    """Token milliseconds that were wasted; a token has a kilobyte of KV."""
    return desk.parked.counts["parked_waste"] * 1e9


def test_what_is_withheld_is_wasted() -> None:
    desk = Desk("preserve")
    desk.compute(1)
    desk.engine.handle([Park(1, expected=500.0)])
    assert wasted(desk) == 0
    desk.clock.advance(3.0)
    desk.compute(2)
    assert wasted(desk) == pytest.approx(10 * 1e3 * (desk.clock.now() - 1.0))


@pytest.mark.parametrize("policy", ["priced", "discard"])
def test_what_is_computed_again_is_wasted(policy: str) -> None:
    desk = Desk(policy)
    desk.compute(1)
    desk.engine.handle([Park(1, expected=500.0)])
    desk.compute(2, close=True)  # the policy decides
    desk.engine.planner.costs.forward, before = LineFit(2.0, 0.5), wasted(desk)
    desk.engine.handle([Append(1, ints([7, 8]).tobytes()), Advance(1, 5, GOAL, close=True)])
    desk.run()
    lost = 10 if policy == "discard" else 0
    assert wasted(desk) - before == pytest.approx(0.5 * lost * lost / 2)


def test_a_claim_ends_with_the_pause() -> None:
    desk = Desk()
    desk.compute(1)
    desk.engine.handle([Park(1, "tool", "me", 5.0)])
    desk.clock.advance(7.0)
    assert len(desk.parked) == 1
    desk.compute(1)
    assert not desk.parked
    assert desk.parked.durations.remaining("me", "tool", 0.0) == pytest.approx(7.0, rel=0.2)


def test_a_claim_ends_at_its_deadline_and_the_context_stays() -> None:
    desk = Desk()
    desk.compute(1)
    desk.engine.handle([Park(1, deadline=2.0)])
    desk.clock.advance(2.0)
    desk.compute(2, close=True)
    assert not desk.parked
    assert desk.parked.expired == 1
    assert desk.compute(1)


@pytest.mark.parametrize(
    "verb",
    [Park(1, expected=-1.0), Park(1, deadline=float("nan")), Park(7), Park(1, expected=1e999)],
)
def test_a_bad_park_is_counted_and_changes_nothing(verb: Park) -> None:
    desk = Desk()
    desk.compute(1)
    desk.engine.handle([Park(1, "kept")])
    assert desk.engine.handle([verb]) == []
    assert desk.engine.stats.bad_verbs == 1
    assert len(desk.parked) == 1


def test_a_flush_takes_parked_kv_and_the_program_goes_on() -> None:
    desk = Desk(capacity=35)
    desk.compute(1)
    desk.engine.handle([Park(1, expected=5.0)])
    desk.compute(2, 3, 4, 5, close=True)  # evictions that have passed over the claim
    (reply,) = desk.engine.handle([Control(1, "flush")])
    assert isinstance(reply, Reply)
    assert reply.ok
    assert desk.engine.store.pool.free == desk.engine.store.pool.size
    assert desk.compute(1)[0].stats.cached_tokens == 0


def test_a_snapshot_shows_what_waits() -> None:
    desk = Desk()
    desk.compute(1)
    desk.engine.handle([Park(1, "search", expected=5.0)])
    desk.clock.advance(1.0)
    (reply,) = desk.engine.handle([Control(1, "tree", 5)])
    assert isinstance(reply, Reply)
    (shown,) = reply.data["parked"]
    assert (shown["id"], shown["tool"], shown["tokens"]) == (1, "search", 10)
    assert shown["elapsed"] == 1.0
    assert desk.engine.stats_now()["parked_tokens"] == 10


def test_a_context_that_returns_is_not_kept_from_its_own_pages() -> None:
    desk = Desk("preserve", capacity=35)
    desk.compute(1, 2)
    desk.engine.handle([Park(1, expected=1.0), Park(2, expected=1.0)])
    assert desk.parked.withheld == 20
    desk.engine.handle([Append(1, ints([3]).tobytes()), Advance(1, 7, GOAL, close=True)])
    assert desk.parked.withheld == 10
    (done,) = desk.run()
    assert done.stats.cached_tokens == 10


def test_the_gauge_follows_what_memory_takes() -> None:
    desk = Desk(capacity=40)
    desk.compute(1, 2, 3)
    desk.engine.handle([Park(number, expected=500.0) for number in (1, 2, 3)])
    assert desk.engine.stats_now()["parked_tokens"] == 30
    for number in range(4, 9):
        desk.compute(number, close=True)
    assert desk.engine.stats_now()["parked_tokens"] <= sum(desk.cached(n) for n in (1, 2, 3)) + 10


def test_claims_without_kv_are_not_sorted_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(capacity=40)
    desk.compute(1, 2, 3)
    desk.engine.handle([Park(number, expected=500.0) for number in (1, 2, 3)])
    desk.compute(4, 5, 6, close=True)
    desk.engine.store.flush()
    sorts: list[float] = []
    sort = desk.parked._sort

    def counted() -> None:
        sorts.append(desk.clock.now())
        sort()

    monkeypatch.setattr(desk.parked, "_sort", counted)
    for number in range(10, 20):
        desk.compute(number, close=True)
    assert len(sorts) == len(set(sorts)), "claims were sorted twice at one moment"


@pytest.mark.parametrize(("policy", "counts"), [("priced", True), ("none", False), ("ttl", False)])
def test_a_claim_counts_in_host_memory_too(policy: str, counts: bool) -> None:
    desk = Desk(policy, capacity=25, host=40)
    desk.compute(1)
    desk.engine.handle([Park(1, expected=20.0)])
    host, context = desk.engine.store.host, desk.engine.store.contexts[1]
    assert host is not None
    for number in range(2, 14):
        desk.compute(number, close=True)
        desk.clock.advance(0.5)
    assert desk.cached(1) == 0 or policy == "ttl"
    assert (host.choose is not None) == counts
    if policy != "ttl":
        assert (host.match(context.key, 10, context.namespace) > 0) == counts
    desk.engine.handle([Close(1)])
    assert host.choose is None, "without claims nothing is chosen"
    assert not any(node.claims for node in host.tree.nodes())
