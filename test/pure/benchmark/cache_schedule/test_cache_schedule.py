"""Optimal hit rates, in counts. SGLang paper, Theorem 3.1: visiting a batch's radix tree depth
first is optimal with a cache of at least the longest request, and longest prefix match first is
such a visit.

What is claimed here, for page size 1, without a starvation bound, for prompts of which none is a
prefix of another:

- one request at a time, KV cache of exactly the longest request: LPM and DFS-weight compute every
  edge of the union tree exactly once;
- many at a time, prompts in chunks, memory enough for all: so does every order (requests of one
  pass share what any of them computes);
- many at a time, memory short: LPM and DFS-weight compute fewer tokens than FCFS and random.
"""

from __future__ import annotations

import random

import pytest
from helpers.seeds import seeds

from benchmark.cache_schedule.measure import longest, measure
from benchmark.cache_schedule.workloads import WORKLOADS, Prompts, lower_bound, workload

AWARE = ("lpm", "dfs-weight")
OTHERS = ("fcfs", "random")


def small_tree(seed: int) -> Prompts:
    """Forty prompts over few tokens, so that they meet by chance at every depth."""
    r = random.Random(seed)
    stems = [[r.randrange(1, 4) for _ in range(r.randint(1, 12))] for _ in range(6)]
    out = []
    for number in range(40):
        body = [t for _ in range(r.randint(1, 3)) for t in r.choice(stems)]
        out.append([*body[: r.randint(1, len(body))], 100 + number])
    return out


def test_the_lower_bound_counts_each_prefix_once() -> None:
    for seed in range(50):
        prompts = small_tree(seed)
        prefixes = {tuple(p[: n + 1]) for p in prompts for n in range(len(p))}
        assert lower_bound(prompts) == len(prefixes)


@pytest.mark.slow
@pytest.mark.parametrize("policy", AWARE)
@pytest.mark.parametrize("name", WORKLOADS)
def test_theorem_3_1(name: str, policy: str) -> None:
    prompts = workload(name, 1)
    result = measure(prompts, policy, capacity=longest(prompts), draw=0, running=1)
    assert result.computed == result.bound


@pytest.mark.slow
@pytest.mark.parametrize("policy", AWARE)
@pytest.mark.parametrize("chunk", [3, -1])
def test_theorem_3_1_on_many_small_trees(policy: str, chunk: int) -> None:
    for seed in seeds(15, 60):
        prompts = small_tree(seed)
        result = measure(prompts, policy, capacity=longest(prompts), draw=0, running=1, chunk=chunk)
        assert result.computed == result.bound, f"seed {seed}"


def test_first_come_first_served_misses_the_bound() -> None:
    """The theorem is about the order: first come, first served misses it."""
    prompts = workload("few-shot", 1)
    result = measure(prompts, "fcfs", capacity=longest(prompts), draw=0, running=1)
    assert result.computed > 3 * result.bound


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*AWARE, *OTHERS])
@pytest.mark.parametrize("name", WORKLOADS)
def test_enough_memory_is_optimal(name: str, policy: str) -> None:
    prompts = workload(name, 2)
    capacity = lower_bound(prompts) + 8 * len(prompts)
    result = measure(prompts, policy, capacity=capacity)
    assert result.computed == result.bound
    assert result.hit_rate == result.best_hit_rate
    assert result.retractions == 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", AWARE)
@pytest.mark.parametrize("chunk", [7, 64, -1])
def test_enough_memory_is_optimal_whatever_the_chunks(policy: str, chunk: int) -> None:
    for seed in seeds(5, 20):
        prompts = small_tree(seed)
        capacity = lower_bound(prompts) + 8 * len(prompts)
        result = measure(prompts, policy, capacity=capacity, chunk=chunk)
        assert result.computed == result.bound, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("part", [4, 8])
@pytest.mark.parametrize("name", WORKLOADS)
def test_under_pressure_the_aware_orders_compute_less(name: str, part: int) -> None:
    prompts = workload(name, 3)
    capacity = max(lower_bound(prompts) // part, longest(prompts) + 8)
    computed = {p: measure(prompts, p, capacity=capacity).computed for p in (*AWARE, *OTHERS)}
    assert max(computed[p] for p in AWARE) < min(computed[p] for p in OTHERS), computed
    assert computed["lpm"] <= 1.2 * lower_bound(prompts), computed


@pytest.mark.slow
def test_the_starvation_bound_costs_little() -> None:
    prompts = workload("few-shot", 4)
    capacity = lower_bound(prompts) // 8
    free = measure(prompts, "lpm", capacity=capacity)
    bound = measure(prompts, "lpm", capacity=capacity, overtakes=128)
    fcfs = measure(prompts, "fcfs", capacity=capacity)
    assert free.computed <= bound.computed < 0.5 * fcfs.computed
