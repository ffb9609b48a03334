"""The least that a batch of requests has to compute, against counting every order of it, and the
hit rates that a recorder finds, against the engine's own counters."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from helpers.fake_worker import TOKEN_BYTES, FakeWorker, fake_info
from helpers.simulation import History
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Fill, Generate, Goal, Open
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline

from benchmark.cache_schedule.workloads import WORKLOADS, lower_bound, workload
from benchmark.harness.hits import hits
from benchmark.harness.hooks.recorder import recording
from benchmark.harness.prefixes import Asked, distinct, held, least

tokens = st.lists(st.integers(0, 1), min_size=1, max_size=5)


@st.composite
def asked(draw: st.DrawFn, drawn: int = 0) -> Asked:
    prompt = draw(tokens)
    out = draw(st.lists(st.integers(0, 1), max_size=drawn))
    limit = draw(st.integers(max(len(prompt) - 3, 0), len(prompt)))
    return Asked([*prompt, *out], len(prompt), limit, draw(st.sampled_from(["", "salt"])))


def prefixes(one: Asked, start: int, end: int) -> set[tuple[object, ...]]:
    return {(one.space, *one.tokens[: n + 1]) for n in range(start, end)}


def computed(order: tuple[Asked, ...] | list[Asked]) -> int:
    """Prompt tokens that a cache without bounds leaves to compute, one request after the other."""
    cache: set[tuple[object, ...]] = set()
    total = 0
    for one in order:
        hit = 0
        while hit < one.limit and (one.space, *one.tokens[: hit + 1]) in cache:
            hit += 1
        total += one.prompt - hit
        cache |= prefixes(one, 0, len(one.tokens))
    return total


@settings(max_examples=80, deadline=None)
@given(st.lists(asked(), min_size=1, max_size=5))
def test_the_least_is_that_of_the_best_order(batch: list[Asked]) -> None:
    assert least(batch) == min(map(computed, permutations(batch)))


@settings(max_examples=120, deadline=None)
@given(st.lists(asked(drawn=3), min_size=1, max_size=6))
def test_what_was_drawn_before_comes_for_nothing(batch: list[Asked]) -> None:
    """The rule in its own words, prefix by prefix; and no run in this order does with less."""
    total = 0
    for prefix in set().union(*(prefixes(one, 0, one.prompt) for one in batch)):
        having = [n for n, one in enumerate(batch) if prefix in prefixes(one, 0, one.prompt)]
        forced = sum(prefix in prefixes(one, one.limit, one.prompt) for one in batch)
        by = [n for n, one in enumerate(batch)
              if prefix in prefixes(one, one.prompt, len(one.tokens))]  # fmt: skip
        free = bool(by) and min(by) < min(having)
        total += forced or (not free)
    assert least(batch) == total <= computed(batch)


@given(st.lists(tokens, max_size=6))
def test_distinct_prefixes(sequences: list[list[int]]) -> None:
    every = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert distinct(sequences) == len(every)
    assert held([Asked(s, len(s), len(s)) for s in sequences]) == len(every)


@pytest.mark.parametrize("name", WORKLOADS)
def test_it_is_the_bound_of_theorem_3_1(name: str) -> None:
    """The bound holds if no prompt is the beginning of another."""
    prompts = workload(name, 5)
    assert least([Asked(p, len(p), len(p) - 1) for p in prompts]) == lower_bound(prompts)


def _engine(capacity: int, policy: str = "lpm") -> EngineCore:
    schedule = ScheduleConfig(schedule_policy=policy, chunked_prefill_size=64,
                              max_running_requests=8)  # fmt: skip
    return EngineCore(Inline(FakeWorker(1)), fake_info(capacity, 1), schedule, TOKEN_BYTES)


def ask(engine: EngineCore, number: int, prompt: list[int], goal: Goal | None = None) -> None:
    drawing = Generate(SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True))
    engine.handle([Open(number, ints(prompt).tobytes()),
                   Advance(number, number, goal or drawing, close=True)])  # fmt: skip


def finish(engine: EngineCore) -> None:
    while engine.busy:
        engine.step()
    engine.store.check()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=12), min_size=1, max_size=8))
def test_the_optimum_is_reached_with_memory_enough(prompts: list[list[int]]) -> None:
    """One request after the other, shorter ones first, as in the best order."""
    engine = _engine(4096)
    with recording(engine) as recorded:
        for number, prompt in enumerate(sorted(prompts, key=len)):
            ask(engine, number, prompt)
            finish(engine)
    found = hits(recorded)
    assert found.prompt == sum(map(len, prompts)) == engine.stats.prompt_tokens
    assert found.computed == found.least
    assert found.longest == max(map(len, prompts)) + 4
    assert found.share == 1.0


def test_a_hint_counts_for_what_it_computes() -> None:
    """Hints change neither the prompts nor the computed tokens."""
    rates = []
    for hint in (False, True):
        engine = _engine(4096)
        with recording(engine) as recorded:
            if hint:
                ask(engine, 9, [3] * 20, Fill())
                finish(engine)
            ask(engine, 1, [3] * 20 + [4])
            ask(engine, 2, [3] * 20 + [5])
            finish(engine)
        found = hits(recorded)
        rates.append((found.requests, found.prompt, found.computed, found.least))
    assert rates[0] == rates[1] == (2, 42, 22, 22)


@pytest.mark.slow
def test_the_recorder_agrees_with_the_engine() -> None:
    """Counts of single requests add up to the engine's counters, in random histories."""
    for seed in range(50):
        history = History(seed, host=False)
        stats = history.engine.stats
        with recording(history.engine) as recorded:
            history.run()
        assert sum(r.prompt for r in recorded.requests) == stats.prompt_tokens
        assert sum(r.cached for r in recorded.requests) == stats.cached_tokens
        assert all(0 < r.ended >= r.received for r in recorded.requests)
        assert len(recorded.batches) == stats.passes + stats.failed_passes or history.faulty
        if not stats.retractions and not history.faulty:
            assert all(r.computed <= r.prompt - r.cached for r in recorded.requests)


def test_nothing_wanted_is_no_rate() -> None:
    engine = _engine(4096)
    with recording(engine) as recorded:
        ask(engine, 1, [3] * random.Random(0).randint(2, 9), Fill())
        finish(engine)
    with pytest.raises(ValueError, match="no request"):
        hits(recorded)
