"""Budgets: gLLM's equations, stated a second time; turns of decodes; milliseconds; phases."""

from __future__ import annotations

import random
from collections import deque
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.config.sections import PREFILL_BUDGETS
from sglang.srt.schedule.prefill_budget import (
    BUDGETS,
    EngineLoad,
    PrefillBudget,
    ReadyRequest,
    Throttle,
    balance,
    by_both,
    by_stages,
    throttle,
    turns,
)
from sglang.srt.schedule.stage_costs import PassWork, StageCost

PAPER = Throttle()
COST = StageCost(
    floor=18.0, base=0.0, token=0.146, context=7.6e-5, attention=1.5e-6, passes=99, usual=30.0
)
LIMITS = st.builds(
    Throttle, iterations=st.integers(1, 16), most=st.integers(64, 8192),
    least=st.integers(1, 64), threshold=st.sampled_from([0.0, 0.05, 0.2]),
)  # fmt: skip
FREE = st.fractions(0, 1, max_denominator=1000)


def test_every_word_of_the_config_has_a_function() -> None:
    assert {"auto", *BUDGETS} == set(PREFILL_BUDGETS)


# -- the equations -------------------------------------------------------------------------------


@given(st.integers(0, 1 << 20), FREE, LIMITS)
def test_equation_3(waiting: int, free: Fraction, limits: Throttle) -> None:
    """The smaller of both terms, MinP as a floor under it, and nothing below the threshold."""
    found = by_both(waiting, float(free), limits)
    threshold = Fraction(str(limits.threshold))
    if float(free) < limits.threshold:
        assert found == 0
        return
    terms = Fraction(waiting, limits.iterations), limits.most * (free - threshold) / (1 - threshold)
    exact = sorted([min(terms), Fraction(limits.least)])[1]
    assert exact - 1 - Fraction(1, 1000) <= found <= exact + Fraction(1, 1000), "rounded down"


def test_the_papers_clamps_and_rounding() -> None:
    assert by_both(8 * 100 + 7, 1.0, PAPER) == 100, "807 / 8, rounded down"
    assert by_both(1 << 20, 1.0, PAPER) == 2048
    assert by_both(1 << 20, 0.05, PAPER) == 32, "MinP is the floor at full memory too"
    assert by_both(1 << 20, 0.0499, PAPER) == 0
    assert by_both(0, 1.0, PAPER) == 32
    assert by_both(1 << 20, 0.525, PAPER) == 1024


@given(st.integers(0, 4096), st.integers(1, 16))
def test_equation_4(decoding: int, stages: int) -> None:
    """The least number of which ``stages`` passes take all."""
    found = by_stages(decoding, stages)
    assert found * stages >= decoding
    assert found == 0 or (found - 1) * stages < decoding


def test_cached_tokens_do_not_wait() -> None:
    load = EngineLoad(4, PAPER, prompts=[(10_000, 800)], decoding=9)
    assert throttle(load).prefill.tokens == 100
    assert throttle(load).decodes == 3


# -- turns of decodes ----------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["fixed", "sarathi", "throttle", "balance"])
@given(st.integers(2, 8), st.integers(1, 60), st.integers(0, 1 << 30))
def test_no_decode_waits_longer_than_two_rounds(
    word: str, stages: int, decoding: int, seed: int
) -> None:
    """Batches from one turn of a request to the next, where requests end and come."""
    r = random.Random(seed)
    numbers = iter(range(1, 1 << 30))
    length = {next(numbers): r.randint(1, 30_000) for _ in range(decoding)}
    turn, flight = dict.fromkeys(length, 0), deque[list[int]]()
    for batch in range(1, 60):
        held = {number for taken in flight for number in taken}
        ready = sorted(
            ReadyRequest(turn[n], n, n, size) for n, size in length.items() if n not in held
        )
        granted = BUDGETS[word](
            EngineLoad(
                stages, PAPER, ready, len(length), sum(length.values()), [(0, 500)], cost=COST
            )
        )
        taken = [item.id for item in ready[: granted.decodes]]
        for number in taken:
            assert batch - turn[number] <= 2 * stages or not turn[number]
            turn[number] = batch
        assert all(batch - last <= 2 * stages for n, last in turn.items() if last)
        flight.append(taken)
        if len(flight) > stages:
            for number in flight.popleft():
                if r.random() < 0.05:
                    del length[number], turn[number]
                    if r.random() < 0.9:
                        new = next(numbers)
                        length[new], turn[new] = r.randint(1, 30_000), batch


# -- milliseconds --------------------------------------------------------------------------------


@given(st.integers(0, 100_000), st.floats(0.01, 1e4), st.sampled_from([0.0, 1e-9, 1.5e-6, 7.5e-6]))
def test_a_chunk_takes_the_milliseconds_it_may(start: int, ms: float, attention: float) -> None:
    cost = StageCost(token=0.1, attention=attention)
    count = cost.tokens(start, ms)
    assert cost.chunk(start, count) <= ms * (1 + 1e-6) + 1e-9
    assert cost.chunk(start, count + 1) > ms * (1 - 1e-6)


def test_chunks_of_one_prompt_take_equal_milliseconds() -> None:
    start, sizes, times = 0, [], []
    while start < 30_000:
        grant = balance(EngineLoad(4, PAPER, prompts=[(start, 65_536 - start)], cost=COST))
        count = grant.prefill.chunk(start, 65_536 - start)
        sizes.append(count)
        times.append(COST.chunk(start, count))
        start += count
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.8 * sizes[0]
    assert max(times) < 1.01 * min(times)


def test_a_weight_bound_pass_is_filled_up_to_its_knee() -> None:
    """18 ms read the weights, or compute 123 tokens."""
    few = [ReadyRequest(0, n, n, 10) for n in range(10)]
    load = EngineLoad(4, PAPER, few, 40, 400, [(0, 100)], cost=COST)
    assert balance(load).prefill.chunk(0, 100) == 100, "not split in eighths"
    load = EngineLoad(4, PAPER, few, 40, 400, [(0, 500)], cost=COST)
    assert 110 <= balance(load).prefill.chunk(0, 500) <= 113


def test_decodes_are_dealt_by_cost() -> None:
    """One long context weighs as much as many short ones."""
    ready = [ReadyRequest(0, 0, 0, 200_000), *(ReadyRequest(1, n, n, 100) for n in range(1, 61))]
    load = EngineLoad(4, PAPER, ready, 61, 206_000, cost=COST)
    assert balance(load).decodes == 1
    rest = EngineLoad(4, PAPER, ready[1:], 61, 206_000, cost=COST)
    assert 20 <= balance(rest).decodes <= 60


def test_a_rest_too_small_for_a_pass_is_merged_or_left() -> None:
    budget = PrefillBudget(2048, 20.0, COST, COST.chunk(0, 32))
    assert budget.chunk(0, 150) == 150, "13 tokens more than fit"
    assert budget.chunk(0, 400) == COST.tokens(0, 20.0)
    assert not budget.after(0, 120).open, "16 more would be a crumb of the next prompt"
    assert budget.after(0, 50).open
    assert PrefillBudget(100, 20.0, COST).chunk(0, 400) == 100


def test_without_measurements_balance_is_throttle() -> None:
    load = EngineLoad(4, PAPER, decoding=9, prompts=[(0, 4000)])
    assert balance(load) == throttle(load)


# -- phases --------------------------------------------------------------------------------------


def test_turns_fill_the_memory_then_empty_it() -> None:
    ready = [ReadyRequest(0, n, n, 10) for n in range(8)]

    def grant(free: float, filling: bool, prompts: int = 9) -> tuple[int, int, bool]:
        found = turns(EngineLoad(4, PAPER, ready, 8, 80, [(0, 9)] * prompts, free, filling=filling))
        return found.prefill.tokens, found.decodes, found.filling

    assert grant(0.5, True) == (2048, 0, True)
    assert grant(0.04, True) == (0, 2, False)
    assert grant(0.4, False) == (0, 2, False)
    assert grant(0.5, False) == (2048, 0, True)
    assert grant(0.9, True, prompts=0) == (0, 2, False)


# -- costs of stages -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "law",
    [
        lambda w: max(18, 0.146 * w.tokens) + 7.6e-5 * w.context + 1.5e-6 * w.attention,
        lambda w: 5 + 0.3 * w.tokens + 1e-3 * w.context + 1e-5 * w.attention,
    ],
    ids=["knee", "line"],
)
def test_a_stage_is_learnt_from_its_passes(law: object) -> None:
    r, cost = random.Random(0), StageCost()
    errors = []
    for number in range(600):
        decodes, chunk, start = r.randint(0, 60), r.choice([0, 0, 60, 300, 900]), r.randint(0, 4000)
        context = sum(r.randint(10, 800) for _ in range(decodes)) + (start + chunk) * bool(chunk)
        work = PassWork(decodes + chunk, context, 2 * context + chunk * (2 * start + chunk))
        ms = law(work) * r.uniform(0.97, 1.03) if work.tokens else 0.0  # type: ignore[operator]
        if number >= 200 and ms:
            errors.append(abs(cost.at(work) - ms) / ms)
        cost.add(work, ms)
    assert sum(errors) / len(errors) < 0.06
    assert abs(cost.error - sum(errors[-50:]) / 50) < 0.05
