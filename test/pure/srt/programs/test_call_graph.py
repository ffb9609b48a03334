"""Call graph: producers, consumers and prefix hashes of programs."""

from __future__ import annotations

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
    stream,
    transform,
    value,
)
from sglang.srt.programs.call_graph import MAX_EDGES, call_graph, prefix_hashes
from sglang.srt.programs.submission import CALLS, Ref
from sglang.srt.programs.submission_check import SubmissionError


def test_a_chain_reads_the_call_before() -> None:
    found = call_graph(program(chain(3)))
    assert list(found.reads) == [1, 3, 5]
    assert [list(found.before(call)) for call in found.reads] == [[], [1], [3]]
    assert found.producers((3, "x1")) == [3]
    assert found.consumers((3, "x1")) == [5]


@pytest.mark.parametrize("seed", range(20))
def test_is_read_says_whether_there_are_consumers(seed: int) -> None:
    found = call_graph(program(random_graph(seed)))
    assert [found.is_read(key) for key in found.made] == [
        bool(found.consumers(key)) for key in found.made
    ]


def test_a_map_reduce_reads_all_branches() -> None:
    found = call_graph(program(map_reduce(3)))
    reduce = next(reversed(found.reads))
    assert sorted(found.before(reduce)) == [1001, 2001, 3001]
    assert found.producers((2, "part")) == [1001, 2001, 3001]
    assert found.consumers((1001, "part")) == [reduce]


def test_a_transform_stands_for_what_it_reads() -> None:
    body = graph(
        stream(0, gen("x"), transform("y", 0, "x", {"op": "strip"})),
        stream(1, value(1, "y"), gen("z"), begin={"call": "g"}),
    )
    found = call_graph(program(body))
    assert found.producers((1, "y")) == [0]
    assert list(found.before(1001)) == [0]


def test_arguments_and_session_variables_are_sources() -> None:
    body = graph(
        stream(0, {"op": "value", "of": {"argument": "a"}}, {"op": "value", "of": {"var": "v"}},
               gen("x")),
        a=["plain", {"var": "w"}],
    )  # fmt: skip
    found = call_graph(program(body))
    assert set(found.external(2)) == {"v", "w"}
    assert found.readers([Ref(argument="a")]) == [2]


def test_a_call_waits_for_exactly_what_its_text_is_made_of() -> None:
    """The closure of direct reads is the closure over steps, for random graphs."""
    for seed in range(100):
        checked = program(random_graph(seed))
        found = call_graph(checked)
        behind: dict[int, set[int]] = {}
        for step, earlier in checked.before.items():
            behind[step] = set().union(*(behind[e] | {e} for e in earlier), set())
        reach: dict[int, set[int]] = {}
        for call in found.reads:
            reach[call] = set().union(*(reach[e] | {e} for e in found.before(call)), set())
        calls = {n for n, step in checked.steps.items() if isinstance(step, CALLS)}
        assert set(found.reads) == calls
        for call in calls:
            needed = {e for e in behind[call] if e in calls}
            assert reach[call] <= needed, seed


def test_prefix_hashes_depend_on_the_text_before() -> None:
    one = list(prefix_hashes(["You are ", "an engineer", " and "]))
    other = list(prefix_hashes(["You are ", "an engineer", ", or "]))
    cut = list(prefix_hashes(["You are an engineer", " and "]))
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert one[1:] == cut
    assert list(prefix_hashes(["You are "], "tenant")) != one[:1]
    assert [length for _, length in one] == [8, 19, 24]


def test_too_many_edges_are_refused_soon() -> None:
    width = 900
    body = graph(
        stream(0, *(gen(f"x{i}", 1) for i in range(width)), fork(*range(1, width + 1))),
        *(branch(i + 1, width, i, gen("y", 1)) for i in range(width)),
    )
    with pytest.raises(SubmissionError, match=f"more than {MAX_EDGES} edges"):
        call_graph(program(body))


def test_a_join_of_an_empty_branch_reads_nothing() -> None:
    begin = {"fork": 1, "index": 0, "number": 77}
    body = graph(stream(0, gen("x"), fork(1), join(77), gen("y")), stream(1, begin=begin))
    found = call_graph(program(body))
    assert list(found.before(3)) == [0]
