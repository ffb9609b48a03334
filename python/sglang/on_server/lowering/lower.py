"""Lower: converts the steps of a graph, one by one, to steps of a submission.

Each stream has an interpreter, which visits the nodes with a placeholder text for every answer. So
roles, stops, constraints and defaults are the same as in a run. The text that an interpreter
appends, and the calls that it makes, become steps of the submission.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sglang.backend.base import Backend, Choose, Complete, Completion
from sglang.backend.output_constraint import OutputConstraint, constrained
from sglang.errors import SglangError, Unsupported, located
from sglang.ir.choices import METHODS, Decision
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
)
from sglang.ir.nodes import (
    Chain,
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
    SetVariable,
    Transformed,
    node_of,
)
from sglang.ir.params import DEFAULTS, GenParams
from sglang.ir.prompt_media import medium
from sglang.ir.source_location import Location
from sglang.on_server.lowering.values import NotSendable, sendable
from sglang.run.forks import concatenation
from sglang.run.interpreter import Interpreter, Steps
from sglang.run.live_nodes import Promised
from sglang.run.run_scope import Usage
from sglang.run.stream import ForkPoint, Stream

MOST_STEPS = 20_000  # limit of the steps and streams of a submission
JOIN = {"op": "join", "separator": ""}
ANSWER = "?"  # placeholder of every text that only a run knows
PROMPT_FIELDS = ("text", "parts", "image_data", "video_data")  # the server fills in these fields


@dataclass(frozen=True)
class Lowered:
    """A program that a server can run.

    Attributes:
        submission: body of the submission, without the values of ``promised``.
        promised: by name, the arguments that are variables of other submissions.
        calls: by stream, the steps whose results a replay needs, in order.
        tools: by step, the variable of a tool that the client runs.
        names: names of the variables of the program's main stream.
    """

    submission: dict[str, Any]
    promised: dict[str, Promised]
    calls: dict[int, tuple[int, ...]]
    tools: dict[int, str]
    names: frozenset[str]


def lower(
    graph: Graph,
    arguments: Mapping[str, Any],
    backend: Backend,
    defaults: GenParams,
    server_tools: Collection[str] = (),
) -> Lowered:
    """Return a graph with its ``arguments`` as a submission to the runtime of ``backend``.

    Args:
        defaults: parameters that every gen inherits, with a value for each parameter.
        server_tools: names of tools that the server's toolbox runs.

    Raises:
        ProgramError: with the program's line, for a step that a server does not support.
    """
    lowering = _Lowering(graph, arguments, backend)
    lowering.server_tools = server_tools
    lowering.streams[MAIN] = _LoweredStream(lowering.interpreter(Stream(), defaults))
    for step in graph.order():
        lowering.add(step)
    return lowering.result()


class _Unanswered(Interpreter):
    """An interpreter whose calls are answered by ``ANSWER``, without checks of constraints."""

    def asked(
        self,
        node: Gen,
        params: GenParams,
        constraint: OutputConstraint | None,
        model_type: str = "",
        named: bool = True,
    ) -> Steps:
        return super().asked(node, params, None, model_type, named)


@dataclass
class _LoweredStream:
    """Steps of one stream so far, and its interpreter. ``begin``: field of the submission."""

    interpreter: Interpreter
    begin: dict[str, Any] | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    origin: ForkPoint = field(default_factory=ForkPoint)

    @property
    def stream(self) -> Stream:
        return self.interpreter.stream


@dataclass
class _Branch:
    """End of a branch, with the attributes that a join of texts needs."""

    stream: Stream
    origin: ForkPoint

    def check(self) -> None:
        """Do nothing: a branch that did not run has no failure."""


class _Lowering:
    """Conversion of one graph. ``streams``: lowered streams by number."""

    def __init__(self, graph: Graph, arguments: Mapping[str, Any], backend: Backend) -> None:
        self.graph, self.arguments, self.backend = graph, arguments, backend
        self.streams: dict[int, _LoweredStream] = {}
        self.server_tools: Collection[str] = ()
        self._homes = graph.homes()
        self._fresh = itertools.count(max(self._homes, default=-1) + 1)
        self._ends = {n for step in graph.steps().values() for n in ends_of(step.node)}
        self._branches: dict[int, _Branch] = {}
        self._makers: dict[tuple[int, str], int] = {}  # by (graph step, variable), the sent step
        self._sent: dict[str, Any] = {}
        self._promised: dict[str, Promised] = {}
        self._tools: dict[int, str] = {}
        self._count = len(graph.streams)
        self._step = Step(0, ConstantText(""))

    def interpreter(self, stream: Stream, defaults: GenParams) -> Interpreter:
        return _Unanswered(self.backend, stream, defaults, Usage())

    def result(self) -> Lowered:
        """Return the submission of all steps so far."""
        streams = [
            {"stream": number, "begin": lowered.begin, "steps": lowered.steps}
            for number, lowered in self.streams.items()
        ]
        submission = {"version": 1, "name": self.graph.name, "streams": streams,
                      "arguments": self._sent}  # fmt: skip
        calls = {number: tuple(lowered.calls) for number, lowered in self.streams.items()}
        names = (name for step in self.graph.streams[MAIN] for name in step.node.names())
        return Lowered(submission, self._promised, calls, self._tools, frozenset(names))

    def add(self, step: Step) -> None:
        """Lower one step. Raise ProgramError with the program's line."""
        self._step = step
        where = step.location or Location(self.graph.name, step.number)
        try:
            self._visit(step.number, step.node)
        except (SglangError, ValueError, TypeError, OSError) as error:
            raise located(error, f"{type(error).__name__}: {error}", where) from error
        if step.number in self._ends:
            lowered = self._stream
            self._branches[step.number] = _Branch(lowered.stream.copy(), lowered.origin)

    @property
    def _stream(self) -> _LoweredStream:
        return self.streams[self._homes[self._step.number]]

    def _emit(self, number: int, op: str, **fields: Any) -> None:
        steps = self._stream.steps
        if op == "text" and steps and steps[-1]["op"] == "text":
            last = steps[-1]
            if last["number"] not in self._ends:  # a join needs the text up to that step
                last.update(number=number, text=last["text"] + fields["text"])
                return
        self._count += 1
        if self._count > MOST_STEPS:
            raise Unsupported(
                f"the program has more than {MOST_STEPS} steps; submit it in several parts"
            )
        given = {n: v for n, v in fields.items() if v is not None or n == "value"}
        body = {"number": number, "op": op, **given}
        if location := self._step.location:
            body["at"] = [os.path.basename(location.filename), location.line]
        steps.append(body)
        for name in (fields.get("name"), *fields.get("made", ())):
            if name is not None:
                self._makers[self._step.number, name] = number

    def _call(self, number: int, op: str, **fields: Any) -> None:
        self._emit(number, op, **fields)
        self._stream.calls.append(number)

    def _visit(self, number: int, node: Node) -> None:
        handler = self.handlers.get(type(node))
        if handler is None:
            raise SglangError(f"{type(node).__name__} has no place in a program on a server")
        handler(self, number, node)

    # Text

    def _text(self, number: int, node: Node) -> None:
        """Emit a node whose text is known: a constant, or the template's text of a role."""
        stream = self._stream.stream
        begin = len(stream.text)
        self._stream.interpreter.visit(node)
        self._emit(number, "text", text=stream.text[begin:])

    def _argument(self, number: int, node: Argument) -> None:
        value = self.arguments[node.name]
        if isinstance(value, (str, Promised)):
            self._value(number, self._reference(node))
            return
        *first, last = node_of(value).flat()
        for atom in first:
            self._visit(next(self._fresh), atom)
        self._visit(number, last)

    def _variable(self, number: int, node: Variable) -> None:
        self._value(number, self._reference(node))

    def _value(self, number: int, of: dict[str, Any]) -> None:
        self._stream.interpreter.visit(ConstantText(ANSWER))
        self._emit(number, "value", of=of)

    def _image(self, number: int, node: Image) -> None:
        kind, source, frames = node.kind, node.source, node.num_frames
        if isinstance(source, Argument) and not isinstance(self.arguments[source.name], Promised):
            source = self.arguments[source.name]
        sent: dict[str, Any]
        if isinstance(source, (Argument, Variable)):
            sent = self._reference(source)
        else:
            found = medium(kind, source, frames)
            kind, frames, sent = found.kind, found.num_frames, {"url": found.address}
        marker = self.backend.chat_template.marker(kind)
        self._stream.interpreter.visit(ConstantText(marker))
        self._emit(number, "media", kind=kind, source=sent, num_frames=frames, marker=marker)

    # Calls

    def _gen(self, number: int, node: Gen, model_type: str = "") -> None:
        interpreter = self._stream.interpreter
        params, constraint = constrained(node.params, interpreter.defaults)
        if constraint is not None and not self.backend.enforces(constraint):
            raise Unsupported(
                f"{self.backend.name} does not enforce {constraint.kind}, so the client would have "
                "to check the text and ask again; run the program without on='server'"
            )
        if params.max_new_tokens == 0 and (params.return_logprob or params.top_logprobs_num):
            raise Unsupported(
                "a gen of no tokens with log-probabilities looks one token ahead, which a program "
                "on a server cannot take back; run it without on='server'"
            )
        visited = SeparateReasoning((node,), model_type) if model_type else node
        steps = interpreter.visit(visited)
        assert steps is not None
        call = steps.send(None)
        assert isinstance(call, Complete)
        request = self.backend.request(call)
        body = {name: value for name, value in request.items() if name not in PROMPT_FIELDS}
        self._call(number, "gen", name=node.name, body=body, reasoning=model_type or None)
        answer = Completion(ANSWER, {"reasoning_content": ""} if model_type else {})
        _answer(steps, [answer] * (params.n or 1))
        for name in visited.names():
            self._makers[self._step.number, name] = number

    def _reasoned(self, number: int, node: SeparateReasoning) -> None:
        for part in node.parts[:-1]:
            self._part(next(self._fresh), part, node.model_type)
        for part in node.parts[-1:] or (ConstantText(""),):
            self._part(number, part, node.model_type)

    def _part(self, number: int, part: Node, model_type: str) -> None:
        if isinstance(part, Gen):
            self._gen(number, part, model_type)
        else:
            self._visit(number, part)

    def _select(self, number: int, node: Select) -> None:
        steps = self._stream.interpreter.visit(node)
        assert steps is not None
        call = steps.send(None)
        assert isinstance(call, Choose)
        method, prompt = call.method, call.prompt
        if METHODS.get(method.name) is not method:
            raise Unsupported(
                f"the choices_method {method.name!r} is the program's own, which a server does not "
                f"have; use one of {sorted(METHODS)}"
            )
        if prompt.parallel:
            raise Unsupported(
                "select cannot score after join('concate_and_append'); use gen and compare its text"
            )
        adapter = {"lora_path": prompt.lora_path} if prompt.lora_path else None
        self._call(
            number, "choose", name=node.name, options=list(call.options), method=method.name,
            adapter=adapter,
        )  # fmt: skip
        _answer(steps, Decision(ANSWER, {}))

    def _tool(self, number: int, node: RunTool) -> None:
        of = self._source(node.of[0], node.name) if node.of else None
        self._stream.interpreter.visit(ConstantText(ANSWER))
        if node.tool in self.server_tools:
            where, timeout = "server", node.timeout
        else:  # the client itself enforces the timeout
            where, timeout = "client", None
            self._tools[number] = node.name
        self._call(
            number, "tool", name=node.name, tool=node.tool, of=of, timeout=timeout, where=where
        )

    # Variables

    def _set(self, number: int, node: SetVariable) -> None:
        try:
            value = self._sendable(node.value)
        except NotSendable:  # the value stays with the client; a server step cannot read it
            self._emit(number, "text", text="")
            return
        self._emit(number, "set", name=node.name, value=value)

    def _sendable(self, value: Any) -> Any:
        if type(value) is list:
            return [self._sendable(item) for item in value]
        if isinstance(value, (Argument, Variable)):
            return self._reference(value)
        if isinstance(value, Chain):
            return self._sum(value)
        return sendable(value)

    def _sum(self, chain: Chain) -> dict[str, Any]:
        """Emit a step that joins the parts of ``chain``. Return a reference to its text."""
        parts = [part.text if isinstance(part, ConstantText) else part for part in chain.parts]
        of, number, name = self._source(parts, "sum"), next(self._fresh), "sum"
        self._emit(number, "transform", name=name, of=of, transform=[JOIN])
        return {"step": number, "name": name}

    def _transform(self, number: int, node: Transformed) -> None:
        of = self._source(node.of[0], node.name)
        self._emit(number, "transform", name=node.name, of=of, transform=list(node.transforms))

    def _scope(self, number: int, node: ScopeBegin | ScopeEnd) -> None:
        self._stream.interpreter.visit(node)
        op = "scope_begin" if isinstance(node, ScopeBegin) else "scope_end"
        self._emit(number, op, name=node.name)

    def _source(self, value: Any, name: str) -> dict[str, Any]:
        """Return a reference to a value. For a constant, emit a step that sets a variable."""
        if isinstance(value, (Argument, Variable)):
            return self._reference(value)
        number, given = next(self._fresh), f"{name}:given"
        self._emit(number, "set", name=given, value=self._sendable(value))
        return {"step": number, "name": given}

    def _reference(self, value: Argument | Variable) -> dict[str, Any]:
        """Return a reference. Raise NotSendable for a variable that stays with the client."""
        if isinstance(value, Variable):
            maker = self._makers.get((value.source, value.name))
            if maker is None:
                raise NotSendable(
                    f"variable {value.name!r} holds a value that cannot be sent to a server; give "
                    "a text, a number, a bool, None or a list"
                )
            return {"step": maker, "name": value.name}
        given = self.arguments[value.name]
        if isinstance(given, Promised):
            self._promised[value.name] = given
        else:
            self._sent[value.name] = sendable(given)
        return {"argument": value.name}

    # Streams

    def _begin_call(self, number: int, node: Call) -> None:
        interpreter = self.interpreter(Stream(), node.params.over(DEFAULTS))
        begin = {"call": node.program, "number": number}
        self.streams[self._homes[number]] = _LoweredStream(interpreter, begin)

    def _begin_branch(self, number: int, node: GetForkItem) -> None:
        fork = self.streams[self._homes[number]].begin
        assert fork is not None
        fork["number"] = number

    def _fork(self, number: int, node: Fork) -> None:
        lowered = self._stream
        self._emit(number, "fork", children=list(node.children))
        for index, child in enumerate(node.children):
            interpreter = self.interpreter(lowered.stream.copy(), lowered.interpreter.defaults)
            begin = {"fork": number, "index": index}
            self.streams[child] = _LoweredStream(
                interpreter, begin, origin=interpreter.stream.here()
            )

    def _join(self, number: int, node: Join) -> None:
        if node.mode != GATHER:
            branches: Any = [self._branches[end] for end in node.ends]
            self._stream.interpreter.visit(concatenation(branches))
        self._emit(number, "join", ends=list(node.ends), mode=node.mode, made=list(node.made))

    handlers: ClassVar[dict[type[Node], Callable[[_Lowering, int, Any], None]]] = {
        ConstantText: _text,
        RoleBegin: _text,
        RoleEnd: _text,
        Argument: _argument,
        Variable: _variable,
        Image: _image,
        Gen: _gen,
        SeparateReasoning: _reasoned,
        Select: _select,
        RunTool: _tool,
        SetVariable: _set,
        Transformed: _transform,
        ScopeBegin: _scope,
        ScopeEnd: _scope,
        Call: _begin_call,
        GetForkItem: _begin_branch,
        Fork: _fork,
        Join: _join,
    }


def _answer(steps: Steps, answer: Any) -> None:
    """Send the answer of a node's only call."""
    try:
        steps.send(answer)
    except StopIteration:
        return
    raise SglangError("the gen asks more than once, which a program on a server cannot")
