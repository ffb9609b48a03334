"""Live nodes: steps of executors that refer to other executors or to functions, and so are no data.

Graphs never hold them. ``Later`` waits for values of other executors, ``StartForks`` starts other
executors, ``BoundTool`` calls a function of the program, ``LiveSteps`` brings its own visit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeAlias

from sglang.ir.nodes import Node, RunTool, SeparateReasoning
from sglang.run.failure import Failure
from sglang.run.stream import Stream

Tools: TypeAlias = Mapping[str, Callable[..., Any]]  # functions by name


class Awaited(Protocol):
    """An executor whose values another executor waits for."""

    def call_when_settled(self, name: str | None, call: Callable[[], None]) -> bool:
        """Return True if the variable ``name`` (None: everything appended) is settled.

        Otherwise call ``call`` once when it is, in any thread.
        """


class Startable(Protocol):
    """An executor that starts when its parent reaches the fork."""

    interpreter: Any

    def start(self, stream: Stream) -> None:
        """Start with a copy of what the parent has made so far."""

    def end(self, failure: Failure) -> list[Startable]:
        """End with ``failure``. Return the branches that will never start."""


@dataclass(frozen=True)
class Later(Node):
    """Placeholder of the node that ``then()`` returns once every source is settled.

    A source is an executor and the name of a variable, or None for everything appended to it.
    Waiting holds no thread. An error raised by ``then`` ends the stream. ``defines`` names the
    variables that the node will make.
    """

    untraced: ClassVar[str] = "what is appended here only a run knows"
    sources: tuple[tuple[Awaited, str | None], ...]
    then: Callable[[], Node]
    defines: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        return self.defines


@dataclass(frozen=True)
class StartForks(Node):
    """Start the executors ``children`` with copies of the text so far."""

    children: tuple[Startable, ...]


@dataclass(frozen=True)
class BoundTool(Node):
    """A tool with its function. ``of``: the variable that the function is given the text of."""

    blocking = True
    tool: RunTool
    function: Callable[..., Any]
    of: str | None = None

    def names(self) -> Sequence[str]:
        return self.tool.names()


@dataclass(frozen=True)
class LiveSteps(Node):
    """A node whose visit is ``steps(interpreter, model_type)``, a generator of calls.

    ``defines`` names the variables that it makes. ``untraced``: why no graph can hold it, and what
    to do instead. ``model_type``: as of a ``SeparateReasoning``, "" for none.
    """

    blocking = True
    steps: Callable[[Any, str], Generator[Any, Any, None]]
    untraced: str
    defines: tuple[str, ...] = ()

    def names(self) -> Sequence[str]:
        return self.defines


class Promised:
    """An argument of a graph that is variable ``name`` of another run.

    Attributes:
        executor: the executor of that run.
    """

    executor: Any
    name: str


def bound(node: Node, tools: Tools) -> Node:
    """Return ``node`` with the functions of its tools."""
    if isinstance(node, RunTool):
        return BoundTool(node, tools[node.tool])
    if isinstance(node, SeparateReasoning):
        return replace(node, parts=tuple(bound(part, tools) for part in node.parts))
    return node
