"""Graph functions: a function of a state that runs a graph, or splices the graph into a trace."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sglang.compile.graph_runner import GraphRun, GraphSchedule
from sglang.compile.tracer import StepRecorder
from sglang.compile.unknown_values import Unknown
from sglang.ir.graph import Graph
from sglang.ir.graph_steps import (
    MAIN,
    REQUIRED,
    Argument,
    Call,
    GetForkItem,
    Join,
    OpenArgument,
    Step,
    Variable,
    ends_of,
    rebuild,
)
from sglang.ir.nodes import Fork, node_of
from sglang.ir.source_location import caller
from sglang.run.live_nodes import bound
from sglang.state import ProgramState

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def graph_function(graph: Graph, schedule: GraphSchedule) -> Callable[..., Any]:
    """Return a function of a state and the graph's arguments that appends the graph."""

    def replay(s: ProgramState, *args: Any, **kwargs: Any) -> Any:
        values, executor = argument_values(signature, s, *args, **kwargs), s._executor
        if isinstance(executor, StepRecorder):
            return Splice(schedule, executor, values).submit()
        return GraphRun(schedule, executor, values).submit().result()

    state = inspect.Parameter("s", POSITIONAL)
    signature = inspect.Signature([state, *map(_declared, graph.arguments)])
    replay.__name__ = replay.__qualname__ = graph.name
    replay.__signature__ = signature  # type: ignore[attr-defined]
    return replay


def argument_values(signature: inspect.Signature, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the graph's arguments by name. Raise TypeError if they do not fit its signature."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = {name: value for name, value in bound.arguments.items() if name != "s"}
    nothing = [name for name, value in values.items() if value is None]
    if nothing:
        raise TypeError(
            f"argument {nothing[0]!r} is None, which a compiled program does not take: "
            f"compile({nothing[0]}=None)"
        )
    return values


def _declared(parameter: OpenArgument) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if parameter.keyword else POSITIONAL
    default = inspect.Parameter.empty if parameter.default is REQUIRED else parameter.default
    return inspect.Parameter(parameter.name, kind, default=default)


class Splice:
    """Appends the steps of a graph to a trace: its main stream to ``main``, its other streams as
    new streams. All steps get new numbers."""

    def __init__(
        self, schedule: GraphSchedule, main: StepRecorder, arguments: Mapping[str, Any]
    ) -> None:
        self._graph, self._tools = schedule.graph, schedule.tools
        self._arguments = arguments
        self._recorders = {MAIN: main}
        self._numbers: dict[int, int] = {}
        self._branches: dict[int, dict[str, Any]] = {}  # variables at each step that ends a fork

    def submit(self) -> Any:
        """Append every step. Return the result of the program."""
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
        elif not isinstance(node, GetForkItem):  # ``recorder.fork`` has appended it
            recorder.submit(bound(node_of(rebuild(node, self._value)), self._tools), location)

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, Argument):
            return self._arguments[leaf.name]
        if isinstance(leaf, Variable):
            return Unknown(Variable(self._numbers[leaf.source], leaf.name))
        return leaf
