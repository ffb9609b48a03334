"""Passes: graph in, graph out. They change no call that is left; ``compile/code_movement`` has
the one pass that does."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sglang.ir.graph import Graph
from sglang.ir.graph_steps import (
    GATHER,
    MAIN,
    Argument,
    GetForkItem,
    Join,
    Step,
    Variable,
    ends_of,
    rebuild,
    variables,
)
from sglang.ir.nodes import (
    ConstantText,
    Fork,
    Gen,
    Image,
    Node,
    RoleBegin,
    RoleEnd,
    RunTool,
    ScopeBegin,
    ScopeEnd,
    Select,
    SeparateReasoning,
    node_of,
)

# Nodes that the text of a stream depends on, and nodes that depend on the text before them.
WRITING = (
    ConstantText, Argument, Variable, Image, RoleBegin, RoleEnd, ScopeBegin, Gen, Select,
    SeparateReasoning, RunTool,
)  # fmt: skip
READING = (Gen, Select, SeparateReasoning, ScopeEnd, Fork)


def fold(graph: Graph, known: Mapping[str, Any] | None = None) -> Graph:
    """Constant folding: the arguments ``known`` become constants, neighbouring texts one text, and
    empty texts go. The calls stay as they are.

    Raises TypeError where ``known`` names no argument of the graph.
    """
    known = known or {}
    unknown = [name for name in known if name not in {p.name for p in graph.arguments}]
    if unknown:
        raise TypeError(f"{graph.name} has no argument {unknown[0]!r}")

    def leaf(value: Any) -> Any:
        return known.get(value.name, value) if isinstance(value, Argument) else value

    ends = {n for step in graph.steps().values() for n in ends_of(step.node)}
    streams = {}
    for stream, steps in graph.streams.items():
        filled = (replace(step, node=node_of(rebuild(step.node, leaf))) for step in steps)
        streams[stream] = _merged(filled, ends)
    folded = replace(
        graph,
        arguments=tuple(p for p in graph.arguments if p.name not in known),
        streams=streams,
        result=rebuild(graph.result, leaf),
    )
    return _reattached(folded, graph)


def _merged(steps: Iterable[Step], ends: Collection[int]) -> tuple[Step, ...]:
    """``steps`` with texts merged and empty ones gone. Nothing is merged into one of ``ends``: what
    a join sees must not grow."""
    out: list[Step] = []
    for step in steps:
        node, last = step.node, out[-1] if out else None
        if node == ConstantText(""):
            continue
        if (
            isinstance(node, ConstantText)
            and last is not None
            and isinstance(last.node, ConstantText)
            and last.number not in ends
        ):
            out[-1] = replace(last, node=ConstantText(last.node.text + node.text))
        else:
            out.append(step)
    return tuple(out)


def prune(graph: Graph, keep: Collection[str]) -> Graph:
    """Dead-variable removal: what can influence neither the result nor the main stream's variables
    ``keep`` goes: calls, forks, whole streams, and the text after the last call that is wanted.

    Raises ValueError for a variable that the main stream does not make.
    """
    live = _Live(graph)
    makers = {name: step for step in graph.streams[MAIN] for name in step.node.names()}
    for name in keep:
        if name not in makers:
            raise ValueError(f"{graph.name} makes no variable {name!r}")
        live.want(makers[name], name)
    for variable in variables(graph.result):
        live.want(live.steps[variable.source], variable.name)
    live.spread()
    streams = {
        stream: tuple(live.trimmed(step) for step in steps if step.number in live.numbers)
        for stream, steps in graph.streams.items()
        if stream == MAIN or steps[0].number in live.numbers
    }
    return _reattached(replace(graph, streams=streams), graph)


def _reattached(new: Graph, old: Graph) -> Graph:
    """``new`` with each Join at the last step that is left of what it waited for in ``old``."""
    left = new.steps()
    last: dict[int, int] = {}
    for steps in old.streams.values():
        number = steps[0].number if steps else 0
        for step in steps:
            number = step.number if step.number in left else number
            last[step.number] = number

    def attached(step: Step) -> Step:
        if not isinstance(step.node, Join):
            return step
        return replace(step, node=replace(step.node, ends=tuple(last[n] for n in step.node.ends)))

    streams = {stream: tuple(map(attached, steps)) for stream, steps in new.streams.items()}
    return replace(new, streams=streams)


class _Live:
    """Wanted steps, and all steps that can influence them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = graph.steps()
        self.numbers: set[int] = set()
        self._made: set[tuple[int, str]] = set()
        self._new: list[Step] = []
        # Where a step is in its stream, where a stream makes a variable, and how far its text is
        # marked.
        self._places: dict[int, tuple[int, int]] = {}
        self._makers: dict[tuple[int, str], list[int]] = {}
        self._marked: Counter[int] = Counter()
        for stream, steps in graph.streams.items():
            for index, step in enumerate(steps):
                self._places[step.number] = (stream, index)
                for name in step.node.names():
                    self._makers.setdefault((stream, name), []).append(index)

    def want(self, step: Step, name: str) -> None:
        """Variable ``name`` as ``step`` makes it."""
        if isinstance(step.node, Join) and (step.number, name) not in self._made:
            self._made.add((step.number, name))
            for end in step.node.ends:
                stream, place = self._places[end]
                self._want_at(stream, place, name)
        self._mark(step)

    def _want_at(self, stream: int, place: int, name: str) -> None:
        """Want variable ``name`` as it is at an index of a stream, which may have begun with it."""
        steps, made = self.graph.streams[stream], self._makers.get((stream, name), [])
        if before := bisect_right(made, place):
            self.want(steps[made[before - 1]], name)
        elif isinstance(begin := steps[0].node, GetForkItem):
            self._want_at(*self._places[begin.fork], name)

    def spread(self) -> None:
        """Mark what the marked steps depend on, until nothing is new."""
        while self._new:
            step = self._new.pop()
            node = step.node
            self._mark(self._begin(step.number))
            for variable in variables(node):
                self.want(self.steps[variable.source], variable.name)
            if isinstance(node, GetForkItem):
                self._mark(self.steps[node.fork])
            elif isinstance(node, Fork):
                for child in node.children:
                    self._mark(self.graph.streams[child][0])
            elif isinstance(node, Join):
                for end in node.ends:
                    self._mark(self._begin(end))
                    if node.mode != GATHER:
                        self._mark_text(end)
            if isinstance(node, READING):
                self._mark_text(step.number)

    def trimmed(self, step: Step) -> Step:
        """A Join makes only what is wanted."""
        if not isinstance(step.node, Join):
            return step
        made = tuple(name for name in step.node.made if (step.number, name) in self._made)
        return replace(step, node=replace(step.node, made=made))

    def _begin(self, number: int) -> Step:
        """The first step of the stream of step ``number``."""
        return self.graph.streams[self._places[number][0]][0]

    def _mark(self, step: Step) -> None:
        if step.number not in self.numbers:
            self.numbers.add(step.number)
            self._new.append(step)

    def _mark_text(self, number: int) -> None:
        """All text of a stream up to step ``number``."""
        stream, place = self._places[number]
        for step in self.graph.streams[stream][self._marked[stream] : place + 1]:
            if isinstance(step.node, WRITING) or _appends(step.node):
                self._mark(step)
        self._marked[stream] = max(self._marked[stream], place + 1)


def _appends(node: Node) -> bool:
    return isinstance(node, Join) and node.mode != GATHER
