"""Figures of gLLM's evaluation (section 4), each as a table of arms and settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from sglang.srt.core.clock import ManualClock

from benchmark.pipeline.loads import Asked, load
from benchmark.pipeline.virtual_pipeline import (
    ModelCosts,
    Outcome,
    Setting,
    VirtualPipeline,
    ask,
    engine_of,
    play,
)

COLUMNS = ("TTFT s", "TPOT ms", "E2EL s", "tok/s inside", "tok/s whole", "SLO", "bubble")
DEAR = 5.0  # times the attention of the cost file


@dataclass(frozen=True)
class Scope:
    """Options of a run: costs, stages, seconds of arrivals, seeds, limits of latency in seconds."""

    costs: ModelCosts
    stages: int
    seconds: float
    seeds: int
    slo: tuple[float, float]


@dataclass(frozen=True)
class Point:
    """Means over the seeds of one arm in one setting of a figure."""

    figure: str
    setting: str
    arm: str
    values: tuple[float, ...]

    def __getitem__(self, column: str) -> float:
        return self.values[COLUMNS.index(column)]


def arm(word: str) -> tuple[str, str]:
    """Return the budget of an arm, and the term that it leaves out: "throttle w/o UT"."""
    budget, _, without = word.partition(" w/o ")
    return budget, without


def measured(
    scope: Scope, figure: str, name: str, word: str, setting: Setting, kind: str, rate: float
) -> Point:
    """Play one setting for every seed and return the means."""
    found = [
        play(setting, load(kind, rate, scope.seconds, seed), scope.seconds, scope.slo)
        for seed in range(scope.seeds)
    ]

    def mean(of: Callable[[Outcome], float]) -> float:
        return fmean(map(of, found))

    values = (
        mean(lambda o: o.ttft), 1e3 * mean(lambda o: o.tpot), mean(lambda o: o.e2el),
        mean(lambda o: o.inside), mean(lambda o: o.whole), mean(lambda o: o.attained),
        mean(lambda o: o.bubble),
    )  # fmt: skip
    return Point(figure, name, word, values)


def even(stages: int) -> tuple[float, ...]:
    """Equal shares of the layers."""
    return (1 / stages,) * stages


def rates(
    scope: Scope, words: Sequence[str], kind: str, at: Sequence[float], capacity: int
) -> Iterator[Point]:
    """Figures 10 and 14: latency, throughput and attainment against the rate of arrivals."""
    costs = scope.costs
    if kind == "long":
        costs = replace(costs, attention=DEAR * costs.attention)
    for rate in at:
        for word in words:
            budget, without = arm(word)
            setting = Setting(budget, costs, even(scope.stages), capacity=capacity, without=without)
            yield measured(scope, f"10, 14 ({kind})", f"{rate:g}/s", word, setting, kind, rate)


def scaling(scope: Scope, words: Sequence[str], rate: float) -> Iterator[Point]:
    """Figure 13: throughput under more requests than can be served, by the number of stages. Each
    stage brings memory of its own."""
    for stages in (1, 2, 4):
        for word in words:
            setting = Setting(word, scope.costs, even(stages), capacity=100_000 * stages)
            yield measured(scope, "13", f"{stages} stages", word, setting, "sharegpt", rate)


def ablation(scope: Scope, rate: float, capacity: int) -> Iterator[Point]:
    """Figure 15: throttling without each of its terms, and Sarathi-Serve's policy on this
    runtime."""
    for word in ("throttle", "throttle w/o WT", "throttle w/o UT", "sarathi", "balance"):
        budget, without = arm(word)
        setting = Setting(
            budget, scope.costs, even(scope.stages), capacity=capacity, without=without
        )
        yield measured(scope, "15", f"azure {rate:g}/s", word, setting, "azure", rate)


SENSITIVE: dict[str, tuple[float, ...]] = {
    "iterations": (1, 4, 8, 16), "most": (512, 1024, 2048, 4096), "least": (8, 32, 128),
    "threshold": (0.0, 0.05, 0.2),
}  # fmt: skip


def sensitivity(scope: Scope, rate: float, capacity: int) -> Iterator[Point]:
    """Figure 16: each parameter of throttling by itself."""
    for name, values in SENSITIVE.items():
        for value in values:
            whole = int(value) if name != "threshold" else value
            setting = Setting("throttle", scope.costs, even(scope.stages), capacity=capacity)
            if name == "most":
                setting = replace(setting, chunk=int(value))
            else:
                setting = replace(setting, limits=((name, whole),))
            yield measured(scope, "16", f"{name} {value:g}", "throttle", setting, "azure", rate)


LENGTHS_ALONE = (64, 128, 256, 512, 1024, 4096, 32_768)


def alone(scope: Scope) -> Iterator[tuple[int, str, float]]:
    """One prompt alone: (its tokens, arm, seconds to its first token), "one stage" with all layers
    on one stage, the others by budget and chunk. A request before it has shown the costs."""
    for tokens in LENGTHS_ALONE:
        rows = [("one stage", "fixed", tokens, 1), ("no chunks", "fixed", tokens, scope.stages)]
        rows += [(f"fixed {chunk}", "fixed", chunk, scope.stages) for chunk in (512, 2048, 8192)]
        rows += [(word, word, 2048, scope.stages) for word in ("throttle", "balance")]
        for name, word, chunk, stages in rows:
            setting = Setting(word, scope.costs, even(stages), chunk=chunk)
            asked = [Asked(0.0, 4096, 40), Asked(1000.0, tokens, 1)]
            yield tokens, name, play(setting, asked, 1.0).lives[1].ttft


def planning(
    scope: Scope, words: Sequence[str], requests: int = 512
) -> Iterator[tuple[str, float]]:
    """Processor milliseconds that a budget adds to each plan where ``requests`` requests generate
    and as many prompts wait: (word, the least of four medians of fifty passes)."""
    for word in words:
        clock = ManualClock()
        setting = Setting(word, scope.costs, even(scope.stages), capacity=4_000_000)
        engine = engine_of(setting, VirtualPipeline(setting, clock), clock)
        for number in range(requests):
            ask(engine, number, Asked(0.0, 30, 400))
        while any(r.context.saved < r.spec.prompt for r in engine.running.values()):
            engine.step()
        for number in range(requests, 2 * requests):
            ask(engine, number, Asked(0.0, 2000, 2))
        budgets, spent = engine.planner.budgets, list[float]()
        for name in ("grant", "planned", "learn"):
            setattr(budgets, name, _timed(getattr(budgets, name), spent))
        each: list[float] = []
        for _ in range(200):
            engine.step()
            each.append(1e3 * sum(spent))
            spent.clear()
        yield word, min(median(each[k : k + 50]) for k in range(0, 200, 50))


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*given)
        finally:
            spent.append(time.thread_time() - began)

    return call


def reach(points: Sequence[Point], word: str, least: float) -> float:
    """Return the highest rate at which an arm serves ``least`` of the requests within the limits,
    interpolated between the measured ones; 0 where it never does."""
    found, before = 0.0, (0.0, 1.0)
    for point in points:
        if point.arm != word:
            continue
        rate, share = float(point.setting.removesuffix("/s")), point["SLO"]
        if share >= least:
            found = rate
        elif before[1] >= least:
            found = before[0] + (rate - before[0]) * (before[1] - least) / (before[1] - share)
        before = rate, share
    return found
