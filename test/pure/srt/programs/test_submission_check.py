"""Submissions are refused whole, naming step and line; hostile ones within bounds."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from helpers.program_graphs import (
    branch,
    chain,
    fork,
    gen,
    graph,
    join,
    map_reduce,
    program,
    random_graph,
    spoiled,
    stream,
    text,
    transform,
    value,
)
from sglang.srt.programs.call_graph import call_graph
from sglang.srt.programs.submission import MAX_ARGUMENTS, MAX_VALUE_DEPTH, Submission
from sglang.srt.programs.submission_check import SubmissionError, checked

HOSTILE = 10_000


def test_a_sound_submission_has_its_steps_in_order() -> None:
    found = program(map_reduce(2))
    assert list(found.before)[:2] == [0, 1]
    assert found.before[2] == (1, 1001, 2001)
    assert found.variables() == {
        "1001.part": (1001, "part"), "2001.part": (2001, "part"), "2.part": (2, "part"),
        "6.all": (6, "all"), "part": (2, "part"), "all": (6, "all"),
    }  # fmt: skip


LINE = {"at": ["p.py", 7]}
MAIN = [text("a"), gen("x")]
REFUSED: dict[str, tuple[Any, str]] = {
    "no main": (graph(stream(1, begin={"call": "g"})), "no stream 0"),
    "two streams of one number": (graph(stream(0), stream(0)), "two streams have the number 0"),
    "two producers": (graph(stream(0, {**gen("x"), "number": 5}, {**gen("x"), "number": 5})),
                      "step 5 .* has a number that stream 0 has too"),
    "main with a begin": (graph(stream(0, begin={"call": "g"})), "stream 0 .* must be null"),
    "no begin": (graph(stream(0), stream(1)), "stream 1 has no begin"),
    "half a begin": (graph(stream(0), stream(1, begin={"fork": 1})), "stream 1 begins neither"),
    "begin of two kinds": (graph(stream(0, fork(1)), stream(1, begin={
        "fork": 0, "index": 0, "call": "g"})), "stream 1 begins neither"),
    "branch of no fork": (graph(stream(0, text("a")), branch(1, 0, 0)), "which is no fork"),
    "branch out of range": (graph(stream(0, fork(1)), branch(1, 0, 4)), "which is no fork"),
    "fork of no stream": (graph(stream(0, {**fork(9), **LINE})),
                          r"step 0 \(fork\) at p.py:7: its branch 0 is stream 9"),
    "one branch twice": (graph(stream(0, fork(1, 1)), branch(1, 0, 0)), "its branch 1 is stream 1"),
    "undefined variable": (graph(stream(0, *MAIN, {**value(1, "y"), **LINE})),
                           r"step 2 \(value\) at p.py:7: variable 'y' of step 1 is read"),
    "undefined step": (graph(stream(0, value(8, "x"))), "variable 'x' of step 8 is read"),
    "undefined argument": (graph(stream(0, {"op": "value", "of": {"argument": "b"}}), a=1),
                           "argument 'b' is not given; the arguments are a"),
    "reference of two forms": (graph(stream(0, {"op": "value", "of": {
        "argument": "a", "var": "v"}}), a=1), "one form"),
    "reference of no form": (graph(stream(0, {"op": "value", "of": {}})), "one form"),
    "read before it is made": (graph(stream(0, value(1, "x"), gen("x"))), "wait for one another"),
    "cycle over streams": (graph(
        stream(0, value(1001, "y"), gen("x")),
        stream(1, value(1, "x"), {**gen("y"), **LINE}, begin={"call": "g"}),
    ), r"wait for one another: .*p.py:7"),
    "join of its own stream": (graph(stream(0, gen("x"), join(0))), "step 0 of its own stream"),
    "join of no step": (graph(stream(0, join(4))), "step 4, which does not exist"),
    "join that makes a name twice": (graph(stream(0, fork(1), join(1000, made=("x", "x"))),
                                           branch(1, 0, 0, gen("x"))), "makes a variable twice"),
    "scope that was not begun": (graph(stream(0, {"op": "scope_end", "name": "s", **LINE})),
                                 r"p.py:7: the scope was not begun"),
    "prompt in a gen": (graph(stream(0, gen("x", input_ids=[1]))), "body has input_ids"),
    "unknown reasoning": (graph(stream(0, {**gen("x"), "reasoning": "no"})), "reasoning is 'no'"),
    "unknown transform": (graph(stream(0, gen("x"), transform("y", 0, "x", {"op": "rot13"}))),
                          "'rot13' is unknown"),
    "pattern that RE2 refuses": (graph(stream(0, gen("x"), transform(
        "y", 0, "x", {"op": "regex", "pattern": "(?=a)"}))), "step 1 .*transform"),
    "object in a value": (graph(stream(0, {"op": "set", "name": "s", "value": {"a": 1}})),
                          "an object in a value"),
    "argument that is a reference to a step": (graph(stream(0), a={"step": 1, "name": "x"}),
                                               "argument 'a' is variable 'x' of step 1"),
    "source that is a number": (graph(stream(0, {"op": "media", "kind": "image", "source": 3,
                                                 "marker": "<i>"})), "source is a text"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_step_and_line(case: str) -> None:
    body, message = REFUSED[case]
    with pytest.raises(SubmissionError, match=message):
        program(body)


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(SubmissionError, match=r"201 steps and streams; at most 200 .*--max-prog"):
        program(chain(100), 200)
    program(chain(100), 201)


def test_values_are_no_deeper_than_their_bound() -> None:
    deep: Any = 1
    for _ in range(MAX_VALUE_DEPTH + 1):
        deep = [deep]
    program(graph(stream(0, {"op": "set", "name": "s", "value": deep})))
    with pytest.raises(SubmissionError, match="nested deeper"):
        program(graph(stream(0, {"op": "set", "name": "s", "value": [deep]})))


def test_arguments_are_bounded_in_number() -> None:
    body: dict[str, Any] = {"streams": [{"stream": 0, "steps": []}]}
    arguments = {f"a{i}": 1 for i in range(MAX_ARGUMENTS)}
    assert msgspec.convert({**body, "arguments": arguments}, Submission).arguments == arguments
    with pytest.raises(msgspec.ValidationError, match=f"{MAX_ARGUMENTS} - at `\\$.arguments`"):
        msgspec.convert({**body, "arguments": {**arguments, "one": 1}}, Submission)


def test_references_are_bounded_in_sum() -> None:
    many = [{"step": 0, "name": "x"}] * (1 << 15)
    steps = [{"op": "set", "name": f"s{i}", "value": many} for i in range(3)]
    with pytest.raises(SubmissionError, match="more than 65536 references"):
        program(graph(stream(0, gen("x"), *steps)))


def test_a_deep_chain_of_forks_needs_no_deep_stack() -> None:
    depth = 900
    streams = [stream(0, fork(1))]
    streams += [branch(i, (i - 1) * 1000, 0, fork(i + 1)) for i in range(1, depth)]
    streams.append(branch(depth, (depth - 1) * 1000, 0, gen("x")))
    call_graph(program(graph(*streams)))


def test_scopes_are_inherited_by_branches() -> None:
    body = graph(
        stream(0, {"op": "scope_begin", "name": "s"}, text("a"), fork(1)),
        branch(1, 2, 0, {"op": "scope_end", "name": "s"}),
    )
    assert program(body).variables() == {"1000.s": (1000, "s")}


def test_random_submissions_are_sound() -> None:
    for seed in range(200):
        found = program(random_graph(seed))
        place = {step: i for i, step in enumerate(found.before)}
        assert all(place[e] < place[s] for s, earlier in found.before.items() for e in earlier)


def test_hostile_submissions_are_refused_or_sound() -> None:
    """msgspec or the check refuses each of them; nothing else is raised."""
    refused = 0
    for seed in range(HOSTILE):
        chance = random.Random(seed)
        body = spoiled(random_graph(seed % 50, chance.randint(0, 6)), chance)
        try:
            found = checked(msgspec.convert(body, Submission), 64)
            call_graph(found)
        except (msgspec.ValidationError, SubmissionError):
            refused += 1
        else:
            assert len(found.before) <= 64
    assert refused > HOSTILE / 2
