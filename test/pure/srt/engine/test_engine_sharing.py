"""The engine over a fake worker: sharing within a pass, seeds, starvation."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import VOCAB, next_token
from helpers.simulation import expected
from sglang.ir.sampling import SamplingParams
from sglang.srt.config.sections import PREFILL_BUDGETS
from sglang.srt.core.messages import (
    Distribution,
    Fill,
)
from sglang.srt.engine import planner
from sglang.srt.engine.rows import uniform
from sglang.srt.schedule.scheduler_view import PassDecision, View

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def alone(prompt: list[int], goal: object) -> list[int]:
    return expected(prompt, goal.sampling).tokens  # type: ignore[attr-defined]


# -- sharing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chunk", "passes"), [(-1, 1), (2048, 1), (256, 5)])
def test_requests_of_one_pass_share_what_any_of_them_computes(chunk: int, passes: int) -> None:
    """64 requests share 1024 tokens that are not cached: computed once, in as many passes as that
    prefix alone and 64 tails of 2 take."""
    desk = Desk(chunked_prefill_size=chunk)
    prefix = [n % 90 for n in range(1024)]
    goal = Distribution(top=1)
    requests = [desk.ask([*prefix, 90, n], goal) for n in range(64)]
    desk.run()
    for n, request in enumerate(requests):
        assert desk.done(request).top == [(next_token([*prefix, 90, n]), -0.5)]
    assert desk.worker.tokens == 1024 + 1 + 64, "token 1025 is shared too"
    assert desk.worker.passes == passes
    assert desk.engine.stats.prompt_tokens == 64 * 1026
    assert desk.engine.stats.cached_tokens == 63 * 1025
    desk.finish()


def decided(monkeypatch: pytest.MonkeyPatch, *first: PassDecision) -> None:
    """The next plans decide this; those after them are made as always."""
    decisions, usual = list(first), planner.plan  # type: ignore[attr-defined]  # a name that it imports

    def plan(view: View, policy: str, most: int) -> PassDecision:
        return decisions.pop(0) if decisions else usual(view, policy, most)

    monkeypatch.setattr(planner, "plan", plan)


def test_a_running_prompt_matches_no_more_cache_than_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second of two equal prompts overtakes the first and ends. Its KV in the cache may be
    evicted: the plan has given that memory to others, all but the two tokens of a chunk."""
    desk = Desk(capacity=16, chunked_prefill_size=2, schedule_policy="fcfs")
    slow, fast = desk.ask(list(range(12)), generate(2)), desk.ask(list(range(12)), generate(1))
    other = desk.ask([50] * 10, generate(1))
    decided(monkeypatch, PassDecision([], [(slow, 2)]), PassDecision([], [(fast, 12)]))
    desk.step()
    desk.step()
    assert desk.done(fast)
    decided(monkeypatch, PassDecision([], [(slow, 2), (other, 10)]), PassDecision([], []))
    desk.step()
    assert desk.engine.running[slow].context.saved == 4
    assert desk.done(other)
    assert desk.engine.stats.plan_misses == 0
    desk.run()
    assert desk.tokens(slow) == alone(list(range(12)), generate(2))
    desk.finish()


def test_a_plan_that_retracts_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retraction that makes too little room shows only once it is done: the same step plans
    anew."""
    desk = Desk()
    old, young = desk.ask(PROMPT, generate(3)), desk.ask([7] * 8, generate(3))
    desk.step()
    decided(monkeypatch, PassDecision([young], []))
    desk.step()
    assert len(desk.tokens(old)) == 2
    desk.run()
    assert desk.done(young).stats.retractions == 1
    desk.finish()


def test_without_sharing_everybody_computes_all() -> None:
    desk = Desk(share=False)
    for n in range(4):
        desk.ask([*PROMPT, n], Distribution(top=1))
    desk.run()
    assert desk.worker.tokens == 4 * 9
    assert desk.engine.stats.cached_tokens == 0
    desk.finish()


# -- chance --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_uniform_is_fair() -> None:
    """Chi-square over 100 bins, of one seed's numbers and of many seeds' first: 99 degrees of
    freedom, the 0.9999 quantile is 161."""
    streams = [
        [uniform(1234, n) for n in range(50_000)],
        [uniform(seed, 0) for seed in range(50_000)],
        [uniform(seed, 7) for seed in range(-25_000, 25_000)],
    ]
    for stream in streams:
        assert all(0.0 <= u < 1.0 for u in stream)
        counts = Counter(int(u * 100) for u in stream)
        assert sum((counts[n] - 500) ** 2 / 500 for n in range(100)) < 161
    pairs = Counter((int(uniform(s, 0) * 10), int(uniform(s, 1) * 10)) for s in range(50_000))
    assert sum((pairs[a, b] - 500) ** 2 / 500 for a in range(10) for b in range(10)) < 161


def test_uniform_is_a_function() -> None:
    assert uniform(42, 0) == uniform(42, 0)
    assert len({uniform(seed, n) for seed in range(100) for n in range(100)}) == 10_000


def test_a_seed_gives_the_same_text_in_any_company() -> None:
    goal = generate(12, temperature=1.0, seed=99)
    texts = []
    for company in (0, 5):
        desk = Desk(chunked_prefill_size=5)
        others = [desk.ask([n, n], generate(9, temperature=1.0)) for n in range(company)]
        request = desk.ask(PROMPT, goal)
        desk.run()
        texts.append(desk.tokens(request))
        assert len({tuple(desk.tokens(other)) for other in others}) == company
        desk.finish()
    assert texts[0] == texts[1] == alone(PROMPT, goal)


def test_requests_without_a_seed_differ_but_repeat() -> None:
    def texts() -> list[list[int]]:
        desk = Desk()
        requests = [desk.ask(PROMPT, generate(9, temperature=1.0)) for _ in range(4)]
        desk.run()
        return [desk.tokens(request) for request in requests]

    one = texts()
    assert len({tuple(text) for text in one}) == 4
    assert one == texts()


def test_sampling_limits_are_stated() -> None:
    with pytest.raises(ValueError, match="n is 129"):
        SamplingParams(n=129).verify(VOCAB)


# -- starvation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "random"])
@pytest.mark.parametrize("limit", [0, 5, 20])
def test_a_request_without_a_prefix_is_not_starved(policy: str, limit: int) -> None:
    """New requests with a cached prefix keep coming, for ever; the odd one out still has its turn
    after at most max_overtakes + max_running_requests of them."""
    running = 3
    desk = Desk(schedule_policy=policy, max_overtakes=limit, max_running_requests=running)
    desk.ask(PROMPT, Fill())
    desk.run()
    for n in range(8):
        desk.ask([*PROMPT, n], generate(3))
    desk.step()
    odd = desk.ask([50] * 8, generate(3))
    later: list[int] = []
    for n in range(400):
        passed = sum(number not in desk.engine.waiting for number in later)
        later.append(desk.ask([*PROMPT, n % 90, n // 90], generate(3)))
        desk.step()
        if odd in desk.engine.running:
            break
    assert odd in desk.engine.running, "starved"
    assert passed <= desk.engine.running[odd].scheduling.overtaken <= limit + running
    desk.run()
    desk.finish()


@pytest.mark.parametrize("budget", PREFILL_BUDGETS)
@pytest.mark.parametrize("movable", [1, 2, 4, 12])
def test_a_fill_ends_when_its_rest_came_from_host_memory(movable: int, budget: str) -> None:
    """The copies take several passes, and the neighbour's tokens take the whole prefill budget."""
    desk = Desk(16, host=64, prefill_budget=budget, chunked_prefill_size=1, schedule_policy="fcfs")
    prompt = list(range(1, 13))
    desk.ask(prompt, Fill())
    desk.run()
    desk.ask(list(range(40, 56)), Fill())  # moves the prompt to host memory
    desk.run()
    desk.engine.planner.movable = movable
    fill, neighbour = desk.ask(prompt, Fill()), desk.ask([77])
    desk.run(100)
    assert desk.done(fill).stats.loaded_tokens >= len(prompt) - 1
    assert len(desk.tokens(neighbour)) == 8
    desk.finish()
