"""Graph: a traced program as plain data (SGLang paper, appendix D).

A graph has streams, one for each state of the program: 0 is the program's own, the others begin
with a ``GetForkItem`` or a ``Call``. A stream is a list of steps, visited in order; a step is a
node of ``ir``, or one of the nodes below, with a number that other steps refer to it by.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sglang.errors import Location
from sglang.ir.nodes import Image, Node, SeparateReasoning, SetVariable, node_of
from sglang.ir.params import GenParams

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
    """The stream goes on from step ``fork`` as its branch ``index``. A ``Fork`` in a graph has the
    numbers of streams as its children."""

    fork: int
    index: int


@dataclass(frozen=True)
class Call(Node):
    """The stream is a run of ``program`` by this one; ``params`` are the run's own, and
    ``num_api_spec_tokens`` that program's."""

    program: str
    params: GenParams = field(default_factory=GenParams)
    num_api_spec_tokens: int | None = None


@dataclass(frozen=True)
class Join(Node):
    """Waits for the steps ``ends``, the last ones of branches, and makes ``made``: of each variable
    a list, by branch. In the other mode, "concate_and_append", the branches' texts are appended."""

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
class Parameter:
    """An argument that is given when the graph runs; ``keyword``: by name only."""

    name: str
    default: Any = REQUIRED
    keyword: bool = False


class Edge(NamedTuple):
    """Step ``after`` waits for step ``before``; ``inter``: they are of two streams."""

    before: int
    after: int
    inter: bool


@dataclass(frozen=True)
class Graph:
    """A program.

    Attributes:
        result: what the program returns: constants, Arguments and Variables, in lists and dicts.
        num_api_spec_tokens: as in ``sglang.function``.
    """

    name: str
    arguments: tuple[Parameter, ...]
    streams: Mapping[int, tuple[Step, ...]]
    result: Any = None
    num_api_spec_tokens: int | None = None

    def steps(self) -> dict[int, Step]:
        """All steps by number."""
        return {step.number: step for steps in self.streams.values() for step in steps}

    def homes(self) -> dict[int, int]:
        """The stream of each step."""
        return {step.number: s for s, steps in self.streams.items() for step in steps}

    def dependencies(self) -> list[Edge]:
        """What waits for what: the order inside each stream, and between streams the values read,
        forks and joins. Raises ValueError for a step that is waited for and does not exist."""
        homes, edges = self.homes(), []
        for stream, steps in self.streams.items():
            previous: int | None = None
            for step in steps:
                before = {} if previous is None else {previous: None}
                for number in dict.fromkeys([*before, *awaited(step.node)]):
                    if number not in homes:
                        raise ValueError(f"{step} waits for step {number}, which does not exist")
                    edges.append(Edge(number, step.number, homes[number] != stream))
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
        """Raises ValueError, with the step and the program's line, where the graph makes no sense:
        a cycle, an undefined variable or argument, an unknown stream, an unmade fork."""
        from sglang.ir.graph_check import check

        check(self)

    def constant_prefix(self, template: Any = None) -> str:
        """Text that every run begins with; roles as ``template`` (a ChatTemplate) has them."""
        from sglang.ir.passes import constant_prefix

        return constant_prefix(self, template)

    def to_json(self) -> str:
        """Raises ValueError for a value that JSON cannot carry."""
        from sglang.ir.graph_json import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> Graph:
        """Raises ValueError for what ``to_json`` did not write."""
        from sglang.ir.graph_json import from_json

        return from_json(text)

    def dot(self) -> str:
        """The graph in Graphviz's language."""
        from sglang.ir.graph_listing import dot

        return dot(self)

    def __str__(self) -> str:
        from sglang.ir.graph_listing import listing

        return listing(self)


def rebuild(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """``value`` with ``leaf(x)`` for each x in it that is not a list, tuple, dict, or a node that
    holds values."""
    if type(value) in (list, tuple):
        return type(value)(rebuild(item, leaf) for item in value)
    if type(value) is dict:
        return {key: rebuild(item, leaf) for key, item in value.items()}
    if isinstance(value, SetVariable):
        return replace(value, value=rebuild(value.value, leaf))
    if isinstance(value, Image):
        return replace(value, source=rebuild(value.source, leaf))
    if isinstance(value, SeparateReasoning):
        parts = (node_of(rebuild(part, leaf)) for part in value.parts)
        return replace(value, parts=tuple(parts))
    return leaf(value)


def variables(value: Any) -> list[Variable]:
    """The Variables that ``value``, a node or a result, reads."""
    return [ref for ref in references(value) if isinstance(ref, Variable)]


def references(value: Any) -> list[Argument | Variable]:
    """The Arguments and Variables in ``value``."""
    found: list[Argument | Variable] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, (Argument, Variable)):
            found.append(leaf)
        return leaf

    rebuild(value, note)
    return found


def awaited(node: Node) -> list[int]:
    """The steps that a node waits for, besides the one before it."""
    if isinstance(node, GetForkItem):
        return [node.fork]
    return [*ends_of(node), *(variable.source for variable in variables(node))]


def ends_of(node: Node) -> tuple[int, ...]:
    """The steps that end the branches of a Join; of other nodes none."""
    return node.ends if isinstance(node, Join) else ()


def _cycle(left: Mapping[int, Step], edges: list[Edge]) -> str:
    """A message that names one cycle among the steps that are ``left``."""
    before = {edge.after: edge.before for edge in edges if edge.before in left}
    path = [next(iter(left))]
    while path[-1] not in path[:-1]:
        path.append(before[path[-1]])
    cycle = [left[number] for number in path[path.index(path[-1]) + 1 :]]
    unmade = any(isinstance(step.node, GetForkItem) for step in cycle)
    hint = "; a fork is used before it is made" if unmade else ""
    return "these steps wait for one another: " + ", ".join(map(str, cycle)) + hint
