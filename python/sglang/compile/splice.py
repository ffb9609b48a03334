"""Splice: a compiled program inside a program that is being traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.compile.tracer import Recorder
from sglang.compile.unknown_values import Unknown
from sglang.ir.graph import Graph
from sglang.ir.graph_steps import (
    MAIN,
    Argument,
    Call,
    GetForkItem,
    Join,
    Step,
    Variable,
    ends_of,
    rebuild,
)
from sglang.ir.location import caller
from sglang.ir.nodes import Fork, node_of


class Splice:
    """Appends the steps of a graph to the stream ``main``, and its other streams beside that one.
    All get new numbers."""

    def __init__(self, graph: Graph, main: Recorder, arguments: Mapping[str, Any]) -> None:
        self._graph = graph
        self._arguments = arguments
        self._recorders = {MAIN: main}
        self._numbers: dict[int, int] = {}
        self._branches: dict[int, dict[str, Any]] = {}  # the variables at the steps that end one

    def submit(self) -> Any:
        """Append every step; gives what the program returns."""
        graph, homes = self._graph, self._graph.homes()
        ends = {end for step in graph.steps().values() for end in ends_of(step.node)}
        for step in graph.order():
            self._submit(homes[step.number], step)
            recorder = self._recorders[homes[step.number]]
            self._numbers[step.number] = recorder.end
            if step.number in ends:
                self._branches[step.number] = dict(recorder.values)
        return rebuild(graph.result, self._value)

    def _submit(self, stream: int, step: Step) -> None:
        node, location = step.node, step.location or caller()
        if isinstance(node, Call):
            self._recorders[stream] = self._recorders[MAIN].record.stream({})
        recorder = self._recorders[stream]
        if isinstance(node, Fork):
            children = recorder.fork(len(node.children), location)
            self._recorders.update(zip(node.children, children))
        elif isinstance(node, Join):
            ends = tuple(self._numbers[end] for end in node.ends)
            branches = [self._branches[end] for end in node.ends]
            recorder.gather(Join(ends, node.made, node.mode), branches, location)
        elif not isinstance(node, GetForkItem):  # which came with its Fork
            recorder.submit(node_of(rebuild(node, self._value)), location)

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, Argument):
            return self._arguments[leaf.name]
        if isinstance(leaf, Variable):
            return Unknown(Variable(self._numbers[leaf.source], leaf.name))
        return leaf
