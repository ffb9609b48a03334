"""Tracer: runs a program with unknown arguments and records the nodes it appends (appendix D).

``trace`` returns a Graph of the whole program, ``constant_prefix`` the text with which it begins.
"""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from sglang.backend.base import Backend
from sglang.backend.output_types import json_schema_of
from sglang.compile.unknown_values import Unknown
from sglang.errors import TraceError, UnknownVariable
from sglang.ir.graph import Graph
from sglang.ir.graph_steps import (
    GATHER,
    REQUIRED,
    Argument,
    Call,
    GetForkItem,
    Join,
    OpenArgument,
    Step,
    Variable,
    rebuild,
)
from sglang.ir.nodes import (
    Fork,
    Gen,
    Image,
    NamedVariable,
    Node,
    SeparateReasoning,
    SetVariable,
    node_of,
)
from sglang.ir.params import DEFAULTS, GenParams, TypedSchema, given
from sglang.ir.source_location import Location, caller
from sglang.run.live_nodes import BoundTool, Later, LiveSteps, StartForks, Tools
from sglang.run.stream_executor import StreamExecutor
from sglang.state import ForkGroup, Program, ProgramState

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def trace(program: Program, known: Mapping[str, Any]) -> Graph:
    """Return the graph of ``program``; see ``trace_with_tools``."""
    return trace_with_tools(program, known)[0]


def trace_with_tools(program: Program, known: Mapping[str, Any]) -> tuple[Graph, Tools]:
    """Return the graph of ``program`` and the functions of its tools. The arguments ``known`` are
    constants of the graph, the others are open.

    An argument with default None counts as known, because programs test it by ``is``.

    Raises:
        TraceError: the program needs a value that only a run knows; the message has the line.
        TypeError: ``known`` names no argument.
    """
    _refuse_async(program)
    known = {**program.bound, **known}
    signature = inspect.signature(program.func)
    signature.bind_partial(None, **known)
    open_ = [
        OpenArgument(
            p.name, REQUIRED if p.default is p.empty else p.default, p.kind is p.KEYWORD_ONLY
        )
        for p in list(signature.parameters.values())[1:]
        if p.kind not in VARIADIC and p.name not in known and p.default is not None
    ]
    unknown = {parameter.name: Unknown(Argument(parameter.name)) for parameter in open_}
    record = TracedStreams()
    main = record.stream({})
    with _tracing(record), _refusals_located(program):
        returned = program.func(TracedState(main), **known, **unknown)
    graph = Graph(
        program.func.__name__,
        tuple(open_),
        {number: tuple(steps) for number, steps in enumerate(record.streams)},
        _result(program.func.__name__, returned),
        program.num_api_spec_tokens,
    )
    return graph, record.tools


@contextmanager
def _refusals_located(program: Program) -> Iterator[None]:
    """Convert TypeErrors of Python for an Unknown (``"".join``, ``re.match``), and exceptions that
    contain an Unknown and cannot be printed, to TraceErrors with the program's line."""
    try:
        yield
    except Exception as error:
        held = any(isinstance(arg, Unknown) for arg in error.args)
        refused = isinstance(error, TypeError) and not held and Unknown.__name__ in str(error)
        if isinstance(error, TraceError) or not (held or refused):
            raise
        what = f"it is in the {type(error).__name__} that is raised" if held else error
        file = program.func.__code__.co_filename
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        raise TraceError(
            f"a value that only a run knows is needed (data-dependent control flow): {what}; "
            f"append it (s += value) instead; at {file}:{lines[-1]}"
        ) from error


def tracing() -> TracedStreams | None:
    """Return the streams of the calling program's trace; None if it is not being traced."""
    return _TRACING.get()


class TracedStreams:
    """The streams of a program that is being traced, and the functions of its tools."""

    def __init__(self) -> None:
        self.streams: list[list[Step]] = []
        self.tools: dict[str, Callable[..., Any]] = {}
        self._steps = 0

    def stream(self, values: Mapping[str, Any]) -> StepRecorder:
        """Add a stream in which the variables ``values`` exist. Return its recorder."""
        self.streams.append([])
        return StepRecorder(self, len(self.streams) - 1, values)

    def step(self, stream: int, node: Node, location: Location) -> Step:
        """Append a step to a stream and return the step."""
        step = Step(self._steps, node, location)
        self._steps += 1
        self.streams[stream].append(step)
        return step

    def call(
        self,
        program: Program,
        args: Sequence[Any],
        arguments: Mapping[str, Any],
        params: GenParams,
        *,
        backend: Any = None,
        stream: bool = False,
    ) -> ProgramState:
        """Trace ``program.run(...)`` as a stream whose steps wait only for values they read."""
        backend = program.backend if backend is None else backend
        if backend is not None or stream:
            option = "stream" if stream else "backend"
            raise TraceError(
                f"{program.func.__name__}.run gives {option}, but a graph runs as a whole on one "
                f"backend: leave it out; at {caller()}"
            )
        _refuse_async(program)
        own = {name: v for name, v in given(params).items() if v != getattr(DEFAULTS, name)}
        node = Call(program.func.__name__, GenParams(**own), program.num_api_spec_tokens)
        recorder = self.stream({})
        recorder.submit(node, caller())
        state = TracedState(recorder)
        state.ret_value = program.func(state, *args, **{**program.bound, **arguments})
        return state


class StepRecorder:
    """Replaces the StreamExecutor of a ProgramState: records nodes and visits none.

    ``values``: results of reading each variable: the value if the program itself has set it, else
    an Unknown.
    """

    def __init__(self, record: TracedStreams, number: int, values: Mapping[str, Any]) -> None:
        self.number = number
        self.values = dict(values)
        self.made: dict[str, None] = {}
        self.record = record

    @property
    def end(self) -> int:
        """Number of the last step so far."""
        return self.record.streams[self.number][-1].number

    def submit(self, node: Node, location: Location) -> None:
        for atom in node.flat():
            if isinstance(atom, (Later, LiveSteps)):
                raise TraceError(f"{atom.untraced}; at {location}")
            plain = _described(node_of(rebuild(rebuild(atom, self._unbound), _plain)))
            _refuse_unknown(plain)
            step = self.record.step(self.number, plain, location)
            for name in plain.names():
                self.values[name] = Unknown(Variable(step.number, name))
                self.made[name] = None
            if isinstance(atom, SetVariable):
                self.values[atom.name] = atom.value

    def _unbound(self, leaf: Any) -> Any:
        """Replace a named variable by its value, and a BoundTool by its RunTool. The function is
        kept in ``record.tools``."""
        if isinstance(leaf, NamedVariable):
            return self.value(leaf.name)
        if not isinstance(leaf, BoundTool):
            return leaf
        name = leaf.tool.tool
        if self.record.tools.setdefault(name, leaf.function) != leaf.function:
            raise TraceError(
                f"two tools are functions named {name!r}, which a graph cannot tell apart; rename "
                f"one; at {caller()}"
            )
        of = leaf.tool.of if leaf.of is None else (self.value(leaf.of),)
        return dataclasses.replace(leaf.tool, of=of)

    def value(self, name: str) -> Any:
        if name not in self.values:
            raise UnknownVariable(f"no variable {name!r}; there are {[*self.values]}", caller())
        value = self.values[name]
        return list(value) if isinstance(value, list) else value

    def declared(self, name: str) -> bool:
        return name in self.values

    def wait(self) -> None:
        """Return at once: no node is visited."""

    def wait_for_program(self) -> None:
        """Return at once: the program is the caller."""

    def fork(self, size: int, location: Location) -> list[StepRecorder]:
        children = [self.record.stream(self.values) for _ in range(size)]
        fork = self.record.step(self.number, Fork(tuple(c.number for c in children)), location)
        for index, child in enumerate(children):
            child.submit(GetForkItem(fork.number, index), location)
        return children

    def join(self, children: Sequence[StepRecorder], mode: str, location: Location) -> None:
        made: dict[str, None] = {}
        if mode == GATHER:
            made = {name: None for child in children for name in child.made}
        node = Join(tuple(child.end for child in children), tuple(made), mode)
        self.gather(node, [child.values for child in children], location)

    def gather(self, node: Join, branches: Sequence[Mapping[str, Any]], location: Location) -> None:
        """Append ``node``. Its variables become lists of their values in the ``branches``."""
        self.submit(node, location)
        for name in node.made:
            self.values[name] = [branch.get(name) for branch in branches]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(
            "the program reads a typed value, its text, messages, meta_info or usage, which only a "
            "run knows "
            f"(data-dependent control flow); at {caller()}"
        )


class TracedState(ProgramState):
    """A ProgramState over a StepRecorder."""

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__(recorder)  # type: ignore[arg-type]

    def fork(
        self, size: int = 1, position_ids_offset: Sequence[int] | None = None
    ) -> TracedForkGroup:
        group = super().fork(size, position_ids_offset)
        return TracedForkGroup([TracedState(s._executor) for s in group.states], self)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return "TracedState()"


class TracedForkGroup(ForkGroup):
    """A ForkGroup of TracedStates."""

    def join(self, mode: str = GATHER) -> None:
        if mode not in (GATHER, "concate_and_append"):
            raise ValueError(f"join mode is {mode!r}; use {GATHER!r} or 'concate_and_append'")
        recorders: Any = [state._executor for state in self.states]
        parent: Any = self._parent._executor
        parent.join(recorders, mode, caller())


def _refuse_async(program: Program) -> None:
    if program.is_async:
        raise TraceError(
            f"{program.func.__name__} is asynchronous, and such a program is not traced"
        )


def _plain(value: Any) -> Any:
    return value.reference if isinstance(value, Unknown) else value


def _described(node: Node) -> Node:
    """Return ``node`` with the types of its gens' schema parameters as ``TypedSchema``."""
    if isinstance(node, SeparateReasoning):
        return dataclasses.replace(node, parts=tuple(map(_described, node.parts)))
    if not isinstance(node, Gen):
        return node
    types: dict[str, Any] = {
        name: TypedSchema(value, json_schema_of(value))
        for name in ("schema", "json_schema")
        if not isinstance(value := getattr(node.params, name), (str, Mapping, type(None), Unknown))
    }
    if not types:
        return node
    return dataclasses.replace(node, params=dataclasses.replace(node.params, **types))


def _refuse_unknown(node: Node) -> None:
    """Raise TraceError for an Unknown among names, choices and parameters, which must be known."""

    def known(value: Any) -> Any:
        if isinstance(value, Unknown):
            raise value.error(f"a {type(node).__name__} needs it to be a constant")
        return value

    for f in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, f.name)
        rebuild(dict(vars(value)) if isinstance(value, GenParams) else value, known)


def _result(name: str, value: Any) -> Any:
    def known(leaf: Any) -> Any:
        if isinstance(leaf, (ProgramState, ForkGroup)):
            raise TraceError(
                f"{name} returns a state, which a graph cannot: return its variables, s['x']"
            )
        return _plain(leaf)

    return rebuild(value, known)


# The prefix alone


class PrefixEnd(BaseException):
    """Raised at the end of the constant prefix, and caught in this module.

    Not an Exception, so that a program's ``except Exception`` does not catch it.
    """


class _Silent(Backend):
    """Backend with the chat template of ``backend``. The prefix ends before any call."""

    name = "tracing"

    def __init__(self, backend: Backend) -> None:
        self.chat_template = backend.chat_template


class _PrefixExecutor(StreamExecutor):
    """Visits nodes at once, and raises PrefixEnd at the first node that is not constant."""

    def submit(self, node: Node, location: Location) -> None:
        for atom in node.flat():
            if atom.blocking or isinstance(atom, (Argument, Image, StartForks)):
                raise PrefixEnd
            super().submit(atom, location)
            if self.failure is not None:
                raise PrefixEnd


class _PrefixRecord(TracedStreams):
    """Raises PrefixEnd when the program runs another program."""

    def call(self, *_: object, **__: object) -> ProgramState:
        raise PrefixEnd


def constant_prefix(program: Program, backend: Backend, arguments: Mapping[str, Any]) -> str:
    """Return the text with which every run with these ``arguments`` begins.

    The program's function runs up to the first use of another argument, or of the model. An
    exception of the function ends the prefix.
    """
    known = {**program.bound, **arguments}
    unknown = {name: Unknown(Argument(name)) for name in program.arg_names if name not in known}
    executor = _PrefixExecutor(_Silent(backend), DEFAULTS, use_thread=False)
    # Suppressed: TypeErrors of an Unknown, PrefixEnd, and errors that the real run will report.
    with suppress(Exception, PrefixEnd), _tracing(_PrefixRecord()):
        returned = program.func(ProgramState(executor), **known, **unknown)
        if inspect.iscoroutine(returned):
            with closing(returned):
                returned.send(None)  # an await ends the prefix
    return executor.stream.text


_TRACING: ContextVar[TracedStreams | None] = ContextVar("tracing", default=None)


@contextmanager
def _tracing(record: TracedStreams) -> Iterator[None]:
    token = _TRACING.set(record)
    try:
        yield
    finally:
        _TRACING.reset(token)
