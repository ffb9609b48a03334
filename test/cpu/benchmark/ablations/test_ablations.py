"""Ablations on a real engine: each switches off what it says. That none changes an answer is in
``e2e/test_paper_smoke.py``, for every claim."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from sglang.backend.base import Completion, Prompt
from sglang.ir.params import GenParams

from benchmark.ablations.measure import hit_rate_curve, hit_rates, measure
from benchmark.ablations.rounds import Size
from benchmark.few_shot.claim import CLAIM
from benchmark.harness.ablations import ABLATIONS, ALL_OFF, FULL, opened, together
from benchmark.harness.claim import Scale
from benchmark.harness.hooks.frontend import sequential, without_hints
from benchmark.harness.hooks.grammars import compiled_per_request, compiler, forget_grammars
from benchmark.harness.hooks.patch import inner, patched


@pytest.fixture(scope="module")
def engine() -> Iterator[sgl.Engine]:
    side = opened(FULL, dtype="float32")
    yield side.engine
    side.close()


@sgl.function
def branching(s, name):
    s += f"These are the notes on {name}. They are long enough to be worth a hint, both of them.\n"
    forks = s.fork(3)
    forks += [f"{number}: " + sgl.gen("note", 2, ignore_eos=True) for number in range(3)]
    return [fork["note"] for fork in forks]


@pytest.mark.parametrize(
    "constraint", [{"regex": "[ab]{3}"}, {"json_schema": '{"type": "boolean"}'}]
)
def test_compiling_for_each_request(engine: sgl.Engine, constraint: dict[str, str]) -> None:
    made = compiler(engine)

    def compiled(count: int) -> int:
        before = made.compiled
        engine.generate(["x"] * count, {**constraint, "max_new_tokens": 4, "temperature": 0})
        return made.compiled - before

    assert compiled(3) == 1
    with compiled_per_request(engine):
        assert compiled(3) == 3
        assert compiled(2) == 2
    assert compiled(3) == 0
    forget_grammars(engine)
    assert compiled(2) == 1


def hints(engine: sgl.Engine) -> int:
    """Requests for no tokens that a run and a batch of ``branching`` send."""
    sent: list[dict[str, Any]] = []
    call = engine.call

    def listening(body: dict[str, Any]) -> Any:
        sent.append(body)
        return call(body)

    with patched(engine, call=listening):
        branching.run("trees", backend=engine)
        branching.run_batch([{"name": "birds"}] * 2, backend=engine)
    return sum(body["sampling_params"].get("max_new_tokens") == 0 for body in sent)


def test_no_hint_is_sent(engine: sgl.Engine) -> None:
    assert hints(engine) == 1  # the hint at the start of the batch
    with without_hints(engine):
        assert hints(engine) == 0
    assert hints(engine) == 1


class Busy:
    """Counts the calls of each program that are in flight at once, at most. If two can be, the
    first waits for the second."""

    def __init__(self, engine: sgl.Engine, seconds: float) -> None:
        self._complete, self._seconds = engine.complete, seconds
        self._changed, self._busy = threading.Condition(), Counter[str]()
        self.most: Counter[str] = Counter()

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        name = "trees" if "trees" in prompt.text else "birds"
        with self._changed:
            self._busy[name] += 1
            self.most[name] = max(self.most[name], self._busy[name])
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most[name] > 1, self._seconds)
        try:
            return self._complete(prompt, params)
        finally:
            with self._changed:
                self._busy[name] -= 1


@pytest.mark.parametrize(("program", "most"), [(branching, 3), (sequential(branching), 1)])
def test_parallelism(engine: sgl.Engine, program: sgl.SglFunction, most: int) -> None:
    """Branches of one program; items of a batch run side by side whatever."""
    busy = Busy(engine, 30.0 if most > 1 else 0.05)
    with patched(engine, complete=busy.complete):
        program.run("trees", backend=engine)
        alone = dict(busy.most)
        program.run_batch([{"name": "trees"}, {"name": "birds"}], backend=engine)
    assert alone["trees"] == min(most, alone["trees"]) > (most > 1)
    assert all(1 <= found <= most for found in busy.most.values())


def test_the_settings_are_those_of_the_names() -> None:
    for name, field, value in (
        ("no cache", "disable_radix_cache", True), ("fcfs", "schedule_policy", "fcfs"),
        ("random", "schedule_policy", "random"), ("no jump-forward", "disable_jump_forward", True),
    ):  # fmt: skip
        assert ABLATIONS[name].settings == {field: value}
    both = together("both", "Both", [ABLATIONS["no cache"], ABLATIONS["fcfs"]])
    side = opened(both, dtype="float32", schedule_policy="lpm")
    store, planner = inner(side.engine).store, inner(side.engine).planner
    assert store.share is False
    assert planner.schedule.schedule_policy == "fcfs"
    assert hints(side.engine) == 0
    side.close()


def test_measures() -> None:
    """Counts that hold on any machine: what was forced is achieved, and short memory evicts."""
    told: list[dict[str, Any]] = []
    size = Size(scale=Scale(6), memory=0.6)
    ablations = [ALL_OFF, ABLATIONS["no jump-forward"], ABLATIONS["compile per request"]]
    measure([CLAIM], ablations, size, 1, told.append, ["throughput"])
    full, bare = told
    assert (full["ablation"], bare["ablation"]) == ("full", "all off")
    assert full["relative"] == [1.0]
    assert bare["achieved"] == bare["evicted"] == 0
    assert 0 < full["achieved"] <= full["optimal"] == bare["optimal"]
    assert full["evicted"] > 0
    assert full["same answers"]
    assert bare["same answers"]
    curve = hit_rate_curve(CLAIM, (0.0, 0.5, 1.0), size, 1, told.append, ["latency"])
    none, half, all_ = [record["achieved"] for record in curve]
    assert none == 0
    assert 0 < half < all_ <= curve[0]["optimal"]
    assert all(record["first_token"][0] > 0 for record in curve)
    rates = hit_rates([CLAIM], size, told.append, ["full", "random"], [1.0, 0.3])
    assert [record["share"] for record in rates[:2]] == [1.0, 1.0]
    assert all(record["evicted"] > 0 for record in rates[2:])
    assert told == [full, bare, *curve, *rates]
