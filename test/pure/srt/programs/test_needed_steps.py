"""Needed steps of random programs equal those of the definition, after every end."""

from __future__ import annotations

import random

from helpers.program_graphs import program, random_graph
from sglang.srt.programs.needed_steps import NeededSteps
from sglang.srt.programs.submission import CALLS
from sglang.srt.programs.submission_check import CheckedProgram


def by_definition(
    checked: CheckedProgram, makers: set[int], ended: set[int], wanted: set[int]
) -> set[int]:
    """Steps that lead to a result: one that nothing makes anything behind, or that is wanted."""
    behind: dict[int, set[int]] = {step: set() for step in checked.before}
    for step, earlier in reversed(list(checked.before.items())):
        for each in earlier:
            behind[each] |= behind[step] | {step}
    over = ended | {step for end in ended for step in behind[end]}
    results = {s for s in makers if not behind[s] & makers} | wanted
    results -= over
    return {s for s in checked.before if s not in over and (s in results or behind[s] & results)}


def test_ends_at_random_leave_what_the_definition_leaves() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        checked = program(random_graph(seed, chance.randint(2, 10)))
        makers = {n for n, s in checked.steps.items() if s.made() or isinstance(s, CALLS)}
        wanted = {n for n in makers if chance.random() < 0.1}
        needs = NeededSteps(checked.before, makers, wanted.__contains__)
        assert needs.needed == by_definition(checked, makers, set(), set()), seed
        ended: set[int] = set()
        dropped: set[int] = set()
        for _ in range(3):
            step = chance.choice(list(checked.before))
            behind = {step}
            for each, earlier in checked.before.items():
                if behind & set(earlier):
                    behind.add(each)
            ended |= behind
            dropped |= set(needs.end(behind))
            left = by_definition(checked, makers, ended, wanted)
            kept = {s for s in by_definition(checked, makers, set(), set()) if s not in dropped}
            assert kept - ended == left & kept, seed


def test_an_end_costs_its_edges_alone() -> None:
    looks = 0

    def wanted(step: int) -> bool:
        nonlocal looks
        looks += 1
        return False

    width = 500
    before: dict[int, tuple[int, ...]] = dict.fromkeys(range(width), ())
    before[width] = tuple(range(width))
    needs = NeededSteps(before, set(before), wanted)
    assert sorted(needs.end([width])) == list(range(width))
    assert all(needs.end([i]) == [] for i in range(width))
    assert looks == width
