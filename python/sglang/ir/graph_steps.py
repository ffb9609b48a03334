"""Steps of a graph, and the nodes that only graphs have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from sglang.ir.nodes import (
    Chain,
    ConstantText,
    Image,
    Node,
    RunTool,
    SeparateReasoning,
    SetVariable,
    Transformed,
    node_of,
)
from sglang.ir.params import GenParams
from sglang.ir.source_location import Location

MAIN = 0
GATHER = "gather_variable"


@dataclass(frozen=True)
class Argument(Node):
    """The argument ``name`` of the program, appended."""

    name: str


@dataclass(frozen=True)
class Variable(Node):
    """Variable ``name`` as step ``source`` has made it, appended."""

    source: int
    name: str


@dataclass(frozen=True)
class GetForkItem(Node):
    """Begin of a stream that continues step ``fork`` as its branch ``index``."""

    fork: int
    index: int


@dataclass(frozen=True)
class Call(Node):
    """Begin of a stream that is a run of another program.

    ``params`` are that run's own, ``num_api_spec_tokens`` is that program's.
    """

    program: str
    params: GenParams = field(default_factory=GenParams)
    num_api_spec_tokens: int | None = None


@dataclass(frozen=True)
class Join(Node):
    """Wait for the steps ``ends``, the last ones of branches.

    Mode "gather_variable" makes each variable of ``made`` a list, by branch. Mode
    "concate_and_append" appends the branches' texts.
    """

    ends: tuple[int, ...]
    made: tuple[str, ...] = ()
    mode: str = GATHER

    def names(self) -> tuple[str, ...]:
        return self.made


@dataclass(frozen=True)
class Step:
    """A node in its stream; ``location`` is the program's line that appended it."""

    number: int
    node: Node
    location: Location | None = None

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        return f"step {self.number} ({type(self.node).__name__}){where}"


class _Required:
    """The default of an argument that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()


@dataclass(frozen=True)
class OpenArgument:
    """An argument that is given when the graph runs; ``keyword``: by name only."""

    name: str
    default: Any = REQUIRED
    keyword: bool = False


class Dependency(NamedTuple):
    """Step ``after`` waits for step ``before``; ``inter``: they are of two streams."""

    before: int
    after: int
    inter: bool


def rebuild(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return ``value`` with each leaf x replaced by ``leaf(x)``.

    Lists, tuples, dicts and nodes that hold values are not leaves. A chain whose parts all become
    values becomes their sum, as the program wrote it.
    """
    if type(value) in (list, tuple):
        return type(value)(rebuild(item, leaf) for item in value)
    if type(value) is dict:
        return {key: rebuild(item, leaf) for key, item in value.items()}
    if isinstance(value, Chain):
        return _sum([rebuild(part, leaf) for part in value.parts])
    if isinstance(value, SetVariable):
        return replace(value, value=rebuild(value.value, leaf))
    if isinstance(value, Image):
        return replace(value, source=rebuild(value.source, leaf))
    if isinstance(value, (RunTool, Transformed)):
        return replace(value, of=rebuild(value.of, leaf))
    if isinstance(value, SeparateReasoning):
        parts = (node_of(rebuild(part, leaf)) for part in value.parts)
        return replace(value, parts=tuple(parts))
    return leaf(value)


def _sum(parts: list[Any]) -> Any:
    """Return the sum of values, or a chain where some are still nodes."""
    if any(isinstance(part, Node) and not isinstance(part, ConstantText) for part in parts):
        return Chain(tuple(map(node_of, parts)))
    values = [part.text if isinstance(part, ConstantText) else part for part in parts]
    return reduce(add, values) if values else ""


def variables(value: Any) -> list[Variable]:
    """Return the Variables that ``value``, a node or a result, reads."""
    return [ref for ref in references(value) if isinstance(ref, Variable)]


def references(value: Any) -> list[Argument | Variable]:
    """Return the Arguments and Variables in ``value``."""
    found: list[Argument | Variable] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, (Argument, Variable)):
            found.append(leaf)
        return leaf

    rebuild(value, note)
    return found


def awaited(node: Node) -> list[int]:
    """Return the steps that a node waits for, besides the one before it."""
    if isinstance(node, GetForkItem):
        return [node.fork]
    return [*ends_of(node), *(variable.source for variable in variables(node))]


def ends_of(node: Node) -> tuple[int, ...]:
    """Return the last steps of the branches of a Join; none for other nodes."""
    return node.ends if isinstance(node, Join) else ()
