"""GraphRun: submits the steps of a graph to stream executors (SGLang paper, appendix D.1).

All steps are submitted at once, in topological order, without a wait. A step that reads values of
other streams is a ``Later`` of its stream, which waits for them. So the executors, in threads or in
an event loop, run in parallel all steps that the graph allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from sglang.ir.graph import Graph
from sglang.ir.graph_steps import (
    GATHER,
    MAIN,
    Argument,
    Call,
    GetForkItem,
    Join,
    Step,
    Variable,
    ends_of,
    rebuild,
    references,
    variables,
)
from sglang.ir.nodes import Chain, Fork, Node, SetVariable, node_of, tools_of
from sglang.ir.params import DEFAULTS
from sglang.ir.source_location import Location
from sglang.run.forks import concatenation, record_join
from sglang.run.live_nodes import Later, Promised, Tools, bound
from sglang.run.stream_executor import StreamExecutor


class GraphSchedule:
    """Facts about a graph before it runs.

    Attributes:
        steps: all steps in topological order, each with the number of its stream.
        kept: steps after which the stream's state is copied, because a later step reads that state
            and the stream changes it.
    """

    def __init__(self, graph: Graph, tools: Tools | None = None, continued: bool = False) -> None:
        """``continued``: another program appends to the main stream after the graph. Raise
        ValueError for a tool of the graph without a function in ``tools``."""
        self.graph, self.tools = graph, dict(tools or {})
        for step in graph.steps().values():
            for name in set(tools_of(step.node)) - set(self.tools):
                given = f"tools={{{name!r}: function}}"
                raise ValueError(f"{step} runs tool {name!r}, which is not given: {given}")
        homes = graph.homes()
        self.steps = [(homes[step.number], step) for step in graph.order()]
        self.homes = homes
        made = Counter((s, name) for s, step in self.steps for name in step.node.names())
        last = {steps[-1].number for steps in graph.streams.values() if steps}
        read = [variables(step.node) for _, step in self.steps] + [variables(graph.result)]
        self.kept = {
            *(
                v.source
                for vs in read
                for v in vs
                if made[homes[v.source], v.name] > 1 or (continued and homes[v.source] == MAIN)
            ),
            *(end for _, step in self.steps for end in ends_of(step.node) if end not in last),
        }


class GraphRun:
    """One run of a graph on the executor of a state."""

    def __init__(
        self, schedule: GraphSchedule, main: StreamExecutor, arguments: Mapping[str, Any]
    ) -> None:
        self._schedule = schedule
        self._main = main
        self._arguments = arguments
        self._executors: dict[int, StreamExecutor] = {}
        self._place(MAIN, main)
        self._kept: dict[int, StreamExecutor] = {}

    def _place(self, stream: int, executor: StreamExecutor) -> None:
        interpreter = executor.interpreter
        interpreter.backend = interpreter.backend.of_stream(stream)
        self._executors[stream] = executor

    def submit(self) -> GraphRun:
        """Submit every step. Return this object."""
        for stream, step in self._schedule.steps:
            self._submit(stream, step)
        return self

    def result(self) -> Any:
        """Wait for the program's result and return it. Raise the errors of reading its values."""
        return rebuild(self._schedule.graph.result, self._value)

    async def aresult(self) -> Any:
        """Return the result as ``result`` does, without occupying a thread."""
        for variable in variables(self._schedule.graph.result):
            await self._after(variable.source).avalue(variable.name)
        for executor, name in self._promised(self._schedule.graph.result):
            await executor.avalue(name)
        return self.result()

    def _promised(self, value: Any) -> list[tuple[StreamExecutor, str]]:
        """Return (executor, name) of the variables of other runs that a node or result reads."""
        names = [ref.name for ref in references(value) if isinstance(ref, Argument)]
        given = [self._arguments[name] for name in names]
        return [(one.executor, one.name) for one in given if isinstance(one, Promised)]

    def _submit(self, stream: int, step: Step) -> None:
        node = step.node
        location = step.location or Location(self._schedule.graph.name, step.number)
        if isinstance(node, Call):
            self._place(stream, self._called(node))
        executor = self._executors[stream]
        if isinstance(node, Fork):
            children = executor.fork(len(node.children), location)
            for number, child in zip(node.children, children):
                child.interpreter.spec_tokens = executor.interpreter.spec_tokens
                self._place(number, child)
        elif isinstance(node, Join):
            executor.submit(self._join(node, executor), location)
        elif not isinstance(node, (Call, GetForkItem)):
            executor.submit(self._node(node), location)
        if step.number in self._schedule.kept:
            (self._kept[step.number],) = executor.fork(1, location, copy=True)

    def _called(self, node: Call) -> StreamExecutor:
        main = self._main
        called = StreamExecutor(
            main.interpreter.backend,
            node.params.over(DEFAULTS),
            run=main.run,
            use_thread=main.use_thread,
        )
        called.interpreter.spec_tokens = node.num_api_spec_tokens or 0
        if main.track is not None:
            called.track = main.track.called()
        return called

    def _node(self, node: Node) -> Node:
        own = ((self._after(v.source), v.name) for v in variables(node))
        sources = (*own, *self._promised(node))
        then = partial(self._filled, node)
        return Later(sources, then, tuple(node.names())) if sources else then()

    def _filled(self, node: Node) -> Node:
        return bound(node_of(rebuild(node, self._value)), self._schedule.tools)

    def _join(self, node: Join, into: StreamExecutor) -> Node:
        branches = tuple((self._after(end), None) for end in node.ends)
        return Later(branches, partial(self._joined, node, into), node.made)

    def _joined(self, node: Join, into: StreamExecutor) -> Node:
        """Return the nodes of a Join whose branches are done. Raise the first branch's failure."""
        branches = [self._after(end) for end in node.ends]
        streams = [self._executors[self._schedule.homes[end]] for end in node.ends]
        record_join(into, streams, node.mode)
        if node.mode != GATHER:
            for stream, branch in zip(streams, branches):
                branch.origin = stream.origin
            return concatenation(branches)
        for branch in branches:
            branch.check()
        made = {name: [b.stream.variables.get(name) for b in branches] for name in node.made}
        return Chain(tuple(SetVariable(name, values) for name, values in made.items()))

    def _after(self, number: int) -> StreamExecutor:
        """Return an executor with the state of a stream after its step ``number``."""
        return self._kept.get(number) or self._executors[self._schedule.homes[number]]

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, Argument):
            given = self._arguments[leaf.name]
            return given.executor.value(given.name) if isinstance(given, Promised) else given
        if isinstance(leaf, Variable):
            return self._after(leaf.source).value(leaf.name)
        return leaf
