"""Objectives of random graphs equal those of a brute-force oracle that walks every path."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from helpers.mutation import Mutation, become, mutate
from sglang.srt.programs import objectives
from sglang.srt.programs.objectives import (
    LATENCY,
    NO_CRITERIA,
    THROUGHPUT,
    Criteria,
    Level,
    criteria_of,
    deduce,
    topological,
)

Before = dict[int, list[int]]
GRAPHS = 500


def random_calls(chance: random.Random) -> Before:
    count = chance.randint(1, 9)
    names = chance.sample(range(100), count)
    return {
        name: [each for each in names[:i] if chance.random() < 0.3] for i, name in enumerate(names)
    }


def random_wishes(chance: random.Random, before: Before) -> dict[int, Criteria]:
    kinds = [LATENCY, THROUGHPUT, Criteria(Level.TIMED, ttft_ms=chance.randint(1, 9)),
             Criteria(Level.TIMED, tpot_ms=chance.randint(1, 9))]  # fmt: skip
    return {call: chance.choice(kinds) for call in before if chance.random() < 0.4}


def paths_from(call: int, before: Before) -> Iterator[list[int]]:
    """Every path that begins at a call and follows what reads it."""
    yield [call]
    for reader, read in before.items():
        if call in read:
            for path in paths_from(reader, before):
                yield [call, *path]


def oracle(before: Before, wishes: Mapping[int, Criteria]) -> dict[int, Any]:
    """Level, times, stage, remaining and critical of each call, by definition."""
    every = {call: list(paths_from(call, before)) for call in before}
    longest = max(len(path) for paths in every.values() for path in paths)
    long_paths = [p for paths in every.values() for p in paths if len(p) == longest]
    found = {}
    for call, paths in every.items():
        own = wishes.get(call, NO_CRITERIA)
        levels = [own.level]
        for path in paths:
            wish = wishes.get(path[-1], NO_CRITERIA)
            if len(path) > 1 and (wish.level is not Level.TIMED or wish.ttft_ms):
                levels.append(wish.level)
        latency = [len(p) - 1 for p in paths if wishes.get(p[-1]) == LATENCY]
        found[call] = (
            max(levels), own.ttft_ms, own.tpot_ms, max(latency, default=-1),
            max(map(len, paths)), any(call in path for path in long_paths),
        )  # fmt: skip
    return found


def connected(before: Before, a: int, b: int) -> bool:
    reached, waiting = {a}, [a]
    while waiting:
        call = waiting.pop()
        near = {*before[call], *(each for each in before if call in before[each])} - reached
        reached |= near
        waiting += near
    return b in reached


@pytest.mark.parametrize("part", range(5))
def test_labels_of_random_graphs_equal_the_oracle(part: int) -> None:
    for seed in range(part * GRAPHS // 5, (part + 1) * GRAPHS // 5):
        chance = random.Random(seed)
        before = random_calls(chance)
        wishes = random_wishes(chance, before)
        labels = deduce(before, wishes)
        plain = {
            call: (
                label.criteria.level, label.criteria.ttft_ms, label.criteria.tpot_ms, label.stage,
                label.remaining, label.critical,
            )
            for call, label in labels.items()
        }  # fmt: skip
        assert plain == oracle(before, wishes), seed
        for a in before:
            for b in before:
                one, other = labels[a], labels[b]
                parallel = a != b and one.stage == other.stage >= 1 and connected(before, a, b)
                assert (a != b and one.group == other.group >= 0) == parallel, (seed, a, b)


MUTATIONS = {
    "stages do not count": [
        Mutation(objectives, "deduce", "stages[call] + 1", become("stages[call]")),
    ],
    "the first criterion wins": [
        Mutation(Criteria, "joined", "max(self.level, _)", become("self.level or other.level")),
    ],
    "a pace is a wish for the calls before": [
        Mutation(Criteria, "upstream", "_ is _ and not _", become("False")),
    ],
    "programs beside each other are one": [
        Mutation(objectives, "_groups", "roots[_]", become("0")),
    ],
    "the longer of two times counts": [
        Mutation(objectives, "_sooner", "min(_, _)", become("max(a, b)")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_oracle_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    checks = [lambda part=part: test_labels_of_random_graphs_equal_the_oracle(part)
              for part in range(5)]  # fmt: skip
    checks += [test_the_first_criterion_does_not_win, test_the_shorter_of_two_times_counts]  # type: ignore[list-item]
    failed = 0
    for check in checks:
        try:
            check()
        except AssertionError:
            failed += 1
    assert failed, f"all pass although {name}"


def test_map_reduce_has_one_task_group() -> None:
    before = {**{i: [] for i in range(4)}, 9: [0, 1, 2, 3], 10: [9]}
    labels = deduce(before, {10: LATENCY})
    assert {labels[i].group for i in range(4)} == {0}
    assert [labels[call].stage for call in (0, 9, 10)] == [2, 1, 0]
    assert labels[9].group == labels[10].group == -1
    assert all(label.criteria.level is Level.LATENCY for label in labels.values())


def test_two_programs_beside_each_other_share_no_group() -> None:
    before = {0: [], 1: [], 2: [0, 1], 10: [], 11: [], 12: [10, 11]}
    labels = deduce(before, {2: LATENCY, 12: LATENCY})
    assert labels[0].group == labels[1].group != labels[10].group == labels[11].group


def test_a_later_wish_only_raises() -> None:
    chance = random.Random(1)
    for _ in range(100):
        before = random_calls(chance)
        wishes = random_wishes(chance, before)
        call = chance.choice(list(before))
        first = deduce(before, wishes)
        more = chance.choice([LATENCY, THROUGHPUT, Criteria(Level.TIMED, ttft_ms=3)])
        joined = wishes.get(call, NO_CRITERIA).joined(more)
        second = deduce(before, {**wishes, call: joined})
        for each in before:
            assert second[each].criteria.level >= first[each].criteria.level
            assert second[each].stage >= first[each].stage


def test_the_first_criterion_does_not_win() -> None:
    wish = THROUGHPUT.joined(LATENCY)
    assert wish == LATENCY.joined(THROUGHPUT) == LATENCY
    labels = deduce({0: [], 1: [0]}, {1: wish})
    assert labels[0].criteria.level is labels[1].criteria.level is Level.LATENCY


def test_the_shorter_of_two_times_counts() -> None:
    joined = criteria_of({"ttft_ms": 200}).joined(criteria_of({"ttft_ms": 50, "tpot_ms": 9}))
    assert joined == Criteria(Level.TIMED, 50, 9)


@pytest.mark.parametrize(
    "given",
    ["", "fast", 3, [], {}, {"ttft_ms": 0}, {"ttft_ms": True}, {"ttft_ms": "1"}, {"tpot": 4},
     {"ttft_ms": 1e9}, {"ttft_ms": float("nan")}],
    ids=str,
)  # fmt: skip
def test_criteria_that_say_nothing_are_refused(given: object) -> None:
    with pytest.raises(ValueError, match="give"):
        criteria_of(given)


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="wait for one another"):
        topological({0: [1], 1: [0]})
