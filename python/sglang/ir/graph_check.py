"""Check: whether a graph, which may come from a file, makes sense."""

from __future__ import annotations

from sglang.ir.graph import (
    GATHER,
    MAIN,
    Argument,
    Call,
    GetForkItem,
    Graph,
    Join,
    Step,
    Variable,
    references,
)
from sglang.ir.nodes import Fork

MODES = (GATHER, "concate_and_append")


def check(graph: Graph) -> None:
    """See ``Graph.check``."""
    steps = graph.steps()
    if MAIN not in graph.streams:
        raise ValueError(f"graph {graph.name!r} has no stream {MAIN}, the program's own")
    if len(steps) != sum(map(len, graph.streams.values())):
        raise ValueError(f"graph {graph.name!r} has two steps of the same number")
    for stream, own in graph.streams.items():
        _check_begin(steps, stream, own)
        for step in own:
            _check_references(graph, steps, str(step), step.node)
            if isinstance(step.node, Fork):
                _check_fork(graph, step, step.node)
            if isinstance(step.node, Join) and step.node.mode not in MODES:
                raise ValueError(f"{step} has mode {step.node.mode!r}; it is one of {MODES}")
    _check_references(graph, steps, "the result", graph.result)
    graph.order()


def _check_begin(steps: dict[int, Step], stream: int, own: tuple[Step, ...]) -> None:
    begins = [step for step in own if isinstance(step.node, (GetForkItem, Call))]
    if stream == MAIN and begins:
        raise ValueError(f"{begins[0]} is in stream {MAIN}, which nothing begins")
    if stream != MAIN and not begins:
        raise ValueError(f"stream {stream} does not begin with GetForkItem or Call")
    if stream != MAIN and begins != list(own[:1]):
        raise ValueError(f"{begins[-1]} is not the first step of stream {stream}")
    for step in begins:
        if isinstance(step.node, GetForkItem):
            fork = steps.get(step.node.fork)
            children = fork.node.children if fork and isinstance(fork.node, Fork) else ()
            if children[step.node.index : step.node.index + 1] != (stream,):
                raise ValueError(
                    f"{step} begins stream {stream} as branch {step.node.index} of step "
                    f"{step.node.fork}, which is no Fork with that branch"
                )


def _check_fork(graph: Graph, step: Step, fork: Fork) -> None:
    for index, child in enumerate(fork.children):
        if not graph.streams.get(child):
            raise ValueError(f"{step} makes stream {child}, which does not exist")
        if graph.streams[child][0].node != GetForkItem(step.number, index):
            raise ValueError(f"{step} makes stream {child}, which does not begin there")


def _check_references(graph: Graph, steps: dict[int, Step], what: str, value: object) -> None:
    arguments = [p.name for p in graph.arguments]
    for ref in references(value):
        if isinstance(ref, Argument) and ref.name not in arguments:
            raise ValueError(f"{what} reads argument {ref.name!r}; the graph has {arguments}")
        if isinstance(ref, Variable):
            source = steps.get(ref.source)
            if source is None or ref.name not in source.node.names():
                raise ValueError(
                    f"{what} reads variable {ref.name!r}, which step {ref.source} does not define"
                )
