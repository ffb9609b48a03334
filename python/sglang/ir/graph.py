"""Graph: a traced program as plain data (SGLang paper, appendix D).

A graph has streams, one for each state of the program: 0 is the program's own, the others begin
with a ``GetForkItem`` or a ``Call``. A stream is a list of steps, visited in order; a step is a
node of ``nodes`` or ``graph_steps`` with a number that other steps refer to it by.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang.ir.chat_template import TEMPLATES, ChatTemplate, Message
from sglang.ir.graph_steps import (
    GATHER,
    MAIN,
    REQUIRED,
    Argument,
    Call,
    Dependency,
    GetForkItem,
    Join,
    OpenArgument,
    Step,
    Variable,
    awaited,
    references,
)
from sglang.ir.nodes import (
    ConstantText,
    Fork,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    SetVariable,
)
from sglang.ir.params import GenParams, given
from sglang.ir.step_json import (
    decode_parameter,
    decode_step,
    decode_value,
    encode_parameter,
    encode_step,
    encode_value,
    fields_of,
)

VERSION = 1
GRAPH_FIELDS = ("version", "name", "arguments", "streams", "result", "num_api_spec_tokens")
MODES = (GATHER, "concate_and_append")
SHOWN_CHARS = 60  # printed characters of a value


@dataclass(frozen=True)
class Graph:
    """A program.

    Attributes:
        result: what the program returns: constants, Arguments and Variables, in lists and dicts.
        num_api_spec_tokens: as in ``sglang.function``.
    """

    name: str
    arguments: tuple[OpenArgument, ...]
    streams: Mapping[int, tuple[Step, ...]]
    result: Any = None
    num_api_spec_tokens: int | None = None

    def steps(self) -> dict[int, Step]:
        """All steps by number."""
        return {step.number: step for steps in self.streams.values() for step in steps}

    def homes(self) -> dict[int, int]:
        """The stream of each step."""
        return {step.number: s for s, steps in self.streams.items() for step in steps}

    def dependencies(self) -> list[Dependency]:
        """Return the dependencies: the order inside each stream, and between streams the values
        read, forks and joins.

        Raise ValueError for a step that is waited for and does not exist.
        """
        homes, edges = self.homes(), []
        for stream, steps in self.streams.items():
            previous: int | None = None
            for step in steps:
                before = {} if previous is None else {previous: None}
                for number in dict.fromkeys([*before, *awaited(step.node)]):
                    if number not in homes:
                        raise ValueError(f"{step} waits for step {number}, which does not exist")
                    edges.append(Dependency(number, step.number, homes[number] != stream))
                previous = step.number
        return edges

    def order(self) -> list[Step]:
        """A topological order of all steps; among those that could come next, the program's.

        Raises ValueError for a cycle.
        """
        steps, edges = self.steps(), self.dependencies()
        missing = Counter(edge.after for edge in edges)
        followers: dict[int, list[int]] = {}
        for edge in edges:
            followers.setdefault(edge.before, []).append(edge.after)
        ready = [number for number in steps if not missing[number]]
        heapq.heapify(ready)
        order = []
        while ready:
            number = heapq.heappop(ready)
            order.append(steps.pop(number))
            for follower in followers.get(number, ()):
                missing[follower] -= 1
                if not missing[follower]:
                    heapq.heappush(ready, follower)
        if steps:
            raise ValueError(_cycle(steps, edges))
        return order

    def check(self) -> None:
        """Raise ValueError, with the step and the program's line, for a graph that makes no sense.

        Examples: a cycle, an undefined variable or argument, an unknown stream, an unmade fork.
        """
        steps = self.steps()
        if MAIN not in self.streams:
            raise ValueError(f"graph {self.name!r} has no stream {MAIN}, the program's own")
        if len(steps) != sum(map(len, self.streams.values())):
            raise ValueError(f"graph {self.name!r} has two steps of the same number")
        for stream, own in self.streams.items():
            _check_begin(steps, stream, own)
            for step in own:
                _check_references(self, steps, str(step), step.node)
                if isinstance(step.node, Fork):
                    _check_fork(self, step, step.node)
                if isinstance(step.node, Join) and step.node.mode not in MODES:
                    raise ValueError(f"{step} has mode {step.node.mode!r}; it is one of {MODES}")
        _check_references(self, steps, "the result", self.result)
        self.order()

    def constant_prefix(self, template: ChatTemplate | None = None) -> str:
        """Return the text that every run begins with, its roles rendered by ``template``."""
        template = template or TEMPLATES["default"]
        text, turns, role = "", list[Message](), ""
        for step in self.streams[MAIN]:
            node = step.node
            if isinstance(node, ConstantText):
                text += node.text
            elif isinstance(node, RoleBegin) and not role and node.role in template.roles:
                prefix, implied = template.opening(node.role, turns)
                text, role = text + prefix, node.role
                turns += implied
            elif isinstance(node, RoleEnd) and node.role == role:
                text += template.around(role, turns)[1]
                turns.append({"role": role, "content": ""})
                role = ""
            elif not isinstance(node, (ScopeBegin, ScopeEnd, SetVariable)):
                break
        return text

    def to_json(self) -> str:
        """Return the graph as JSON text. Raise ValueError for a value that JSON cannot carry.

        The object has the fields of ``GRAPH_FIELDS``; ``step_json`` describes steps and values.
        """
        body = {
            "version": VERSION,
            "name": self.name,
            "arguments": [encode_parameter(parameter) for parameter in self.arguments],
            "streams": [
                {"stream": number, "steps": [encode_step(step) for step in steps]}
                for number, steps in self.streams.items()
            ],
            "result": encode_value(self.result, "the result"),
            "num_api_spec_tokens": self.num_api_spec_tokens,
        }
        return json.dumps(body, ensure_ascii=False, indent=1)

    @staticmethod
    def from_json(text: str) -> Graph:
        """Return the graph of a text that ``to_json`` made, checked. Raise ValueError otherwise."""
        try:
            graph = _graph(json.loads(text))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the text is not a graph: {type(error).__name__}: {error}") from error
        graph.check()
        return graph

    def dot(self) -> str:
        """Return the graph in Graphviz's language: a box for each stream, and broken arrows for
        dependencies between streams."""
        lines = ["digraph {", "  node [shape=box]"]
        for number, steps in self.streams.items():
            lines.append(f"  subgraph cluster_{number} {{")
            lines.append(f'    label = "stream {number}"')
            for step in steps:
                label = json.dumps(described(step.node), ensure_ascii=False)
                lines.append(f"    {step.number} [label={label}]")
            lines.append("  }")
        for edge in self.dependencies():
            style = " [style=dashed]" if edge.inter else ""
            lines.append(f"  {edge.before} -> {edge.after}{style}")
        return "\n".join([*lines, "}"])

    def __str__(self) -> str:
        """The steps of each stream, with the program's lines."""
        lines = [f"{self.name}({', '.join(map(_shown_parameter, self.arguments))})"]
        for number, steps in self.streams.items():
            lines.append(f"stream {number}")
            lines += [f"{step.number:5} {described(step.node)}{_source(step)}" for step in steps]
        if self.result is not None:
            lines.append(f"returns {self.result!r}")
        return "\n".join(lines)


def _cycle(left: Mapping[int, Step], edges: list[Dependency]) -> str:
    """A message that names one cycle among the steps that are ``left``."""
    before = {edge.after: edge.before for edge in edges if edge.before in left}
    path = [next(iter(left))]
    while path[-1] not in path[:-1]:
        path.append(before[path[-1]])
    cycle = [left[number] for number in path[path.index(path[-1]) + 1 :]]
    unmade = any(isinstance(step.node, GetForkItem) for step in cycle)
    hint = "; a fork is used before it is made" if unmade else ""
    return "these steps wait for one another: " + ", ".join(map(str, cycle)) + hint


def _graph(content: Any) -> Graph:
    body = fields_of(content, "the graph", GRAPH_FIELDS, GRAPH_FIELDS[:5])
    if body["version"] != VERSION:
        raise ValueError(f"the graph has version {body['version']!r}; this sglang reads {VERSION}")
    return Graph(
        name=body["name"],
        arguments=tuple(map(decode_parameter, body["arguments"])),
        streams=dict(map(_stream, body["streams"])),
        result=decode_value(body["result"]),
        num_api_spec_tokens=body.get("num_api_spec_tokens"),
    )


def _stream(body: Any) -> tuple[int, tuple[Step, ...]]:
    fields = fields_of(body, "a stream", ("stream", "steps"), ("stream", "steps"))
    return fields["stream"], tuple(map(decode_step, fields["steps"]))


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


# Printing


def described(node: object) -> str:
    """A node in one line; what has its default is left out."""
    words = [type(node).__name__]
    for f in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, f.name)
        if isinstance(value, GenParams):
            words += [f"{name}={item!r}" for name, item in given(value).items()]
        elif value != f.default:
            words.append(str(value) if f.name == "method" else _shown_value(value))
    return " ".join(words)


def _shown_parameter(parameter: OpenArgument) -> str:
    if parameter.default is REQUIRED:
        return parameter.name
    return f"{parameter.name}={_shown_value(parameter.default)}"


def _source(step: Step) -> str:
    if step.location is None:
        return ""
    return f"  # {os.path.basename(step.location.filename)}:{step.location.line}"


def _shown_value(value: Any) -> str:
    if dataclasses.is_dataclass(value) and references(value):
        return described(value)
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
