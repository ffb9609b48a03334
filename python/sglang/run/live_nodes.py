"""Live nodes: nodes that refer to other executors or to functions, so they are not plain data.

Graphs never contain live nodes. ``Later`` waits for values of other executors, ``StartForks``
starts other executors, ``BoundTool`` calls a function of the program, ``LiveSteps`` has a function
that visits it."""

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

        Otherwise call ``call`` once when it becomes settled, in any thread.
        """


class Startable(Protocol):
    """An executor that starts when its parent reaches the fork."""

    interpreter: Any

    def start(self, stream: Stream) -> None:
        """Start with ``stream``, a copy of the parent's stream at the fork."""

    def end(self, failure: Failure) -> list[Startable]:
        """End with ``failure``. Return the forks of this executor that will never start."""


@dataclass(frozen=True)
class Later(Node):
    """Placeholder of the node that ``then()`` returns once every source is settled.

    A source is an executor and the name of a variable, or None for everything appended to it.
    Waiting occupies no thread. An error of ``then`` ends the executor. ``defines``: names of the
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
    """A tool with its function. ``of``: variable whose text is the function's argument."""

    blocking = True
    tool: RunTool
    function: Callable[..., Any]
    of: str | None = None

    def names(self) -> Sequence[str]:
        return self.tool.names()


@dataclass(frozen=True)
class LiveSteps(Node):
    """A node whose visit is ``steps(interpreter, model_type)``, a generator of calls.

    ``defines``: names of the variables that the node makes. ``untraced``: error message of a trace,
    as no graph can contain the node. ``model_type``: of the ``SeparateReasoning`` around it, or "".
    """

    blocking = True
    steps: Callable[[Any, str], Generator[Any, Any, None]]
    untraced: str
    defines: tuple[str, ...] = ()

    def names(self) -> Sequence[str]:
        return self.defines


class Promised:
    """An argument of a graph whose value is the variable ``name`` of another run.

    Attributes:
        executor: executor of the other run.
    """

    executor: Any
    name: str


def bound(node: Node, tools: Tools) -> Node:
    """Return ``node`` with each ``RunTool`` replaced by a ``BoundTool`` with its function."""
    if isinstance(node, RunTool):
        return BoundTool(node, tools[node.tool])
    if isinstance(node, SeparateReasoning):
        return replace(node, parts=tuple(bound(part, tools) for part in node.parts))
    return node
