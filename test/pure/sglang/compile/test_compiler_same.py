"""The interpreter and the compiled graph make the same calls and say the same."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import sglang as sgl
from helpers.programs import VALUES, Recorder, program_of, programs
from hypothesis import given, settings
from sglang.compile.code_movement import constants_first, pieces_of, reorder
from sglang.compiler import CompiledProgram, compile
from sglang.ir.graph import Graph
from sglang.ir.graph_passes import fold, prune
from sglang.ir.graph_steps import MAIN

few = settings(max_examples=100, deadline=None)


def outcome(program: sgl.SglFunction, arguments: dict = VALUES, loop: bool = False, **options):
    backend = Recorder()
    if loop:
        state = asyncio.run(program.arun(**arguments, backend=backend))
    else:
        state = program.run(**arguments, **options, backend=backend)
    said = (state.text(), state.messages(), dict(state._executor.stream.variables))
    return backend.calls, said, state.ret_value


@pytest.mark.slow
@few
@given(programs(compiled=True))
def test_compiled_as_interpreted(operations: list) -> None:
    program = program_of(operations, spec=32)
    expected = outcome(program)
    graph = compile(program).graph
    assert outcome(CompiledProgram(graph)) == expected
    assert outcome(CompiledProgram(graph), use_thread=False) == expected
    assert outcome(CompiledProgram(graph), loop=True) == expected
    read = Graph.from_json(graph.to_json())
    assert read == graph
    assert outcome(CompiledProgram(read)) == expected
    assert outcome(compile(program, **VALUES), {}) == expected


@pytest.mark.slow
@few
@given(programs())
def test_folding_changes_nothing_that_is_said(operations: list) -> None:
    graph = compile(program_of(operations, spec=32)).graph
    expected = outcome(CompiledProgram(graph))
    assert outcome(CompiledProgram(fold(graph))) == expected
    assert outcome(CompiledProgram(fold(graph, VALUES)), {}) == expected


@pytest.mark.slow
@few
@given(programs())
def test_pruning_keeps_what_is_wanted(operations: list) -> None:
    graph = compile(program_of(operations, spec=32)).graph
    calls, (_, _, variables), result = outcome(CompiledProgram(graph))
    for keep in [*([name] for name in variables), [], list(variables)]:
        pruned = prune(graph, keep)
        pruned.check()
        fewer, (_, _, kept), same = outcome(CompiledProgram(pruned))
        assert not fewer - calls
        assert {name: kept[name] for name in keep} == {name: variables[name] for name in keep}
        assert same == result


@pytest.mark.slow
@few
@given(programs())
def test_movement_keeps_the_pieces_and_the_rest(operations: list) -> None:
    graph = compile(program_of(operations, spec=32)).graph
    moved = reorder(graph, constants_first)
    before, after = pieces_of(graph), pieces_of(moved)
    assert Counter(map(str, after)) == Counter(map(str, before))
    assert len(moved.constant_prefix()) >= len(graph.constant_prefix())
    assert {k: v for k, v in moved.streams.items() if k != MAIN} == {
        k: v for k, v in graph.streams.items() if k != MAIN
    }
