"""Nodes: the elements that a program appends to its state, as plain data.

``gen``, ``select`` and the roles only build nodes. ``run/interpreter`` executes them through one
dispatch table, so another reader of the nodes (a tracer, a compiler) needs no change here. ``+``
joins nodes to a Chain; a ``str`` becomes a ConstantText.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sglang.ir.choices import ChoicesMethod
from sglang.ir.params import GenParams

REASONING = "_reasoning_content"


class Node:
    """Base of all nodes.

    ``blocking``: visiting the node may wait for the backend. A blocking node is never visited in
    the thread that appends it.
    """

    blocking: ClassVar[bool] = False

    def __add__(self, other: object) -> Chain:
        return Chain((*self.flat(), *node_of(other).flat()))

    def __radd__(self, other: object) -> Chain:
        return Chain((*node_of(other).flat(), *self.flat()))

    def __format__(self, spec: str) -> str:
        raise TypeError(
            f"{type(self).__name__} cannot be formatted into a text; append it: "
            "s += 'A: ' + sgl.gen('a') + '.'"
        )

    def __str__(self) -> str:
        return self.__format__("")

    def flat(self) -> Iterator[Node]:
        """Yield the atomic nodes, in order."""
        yield self

    def names(self) -> Sequence[str]:
        """Return the names of the variables that visiting the node defines."""
        return ()


def node_of(value: object) -> Node:
    """Return the node for a value that is appended to a state. Raises TypeError for other
    values."""
    if isinstance(value, Node):
        return value
    if isinstance(value, str):
        return ConstantText(value)
    if value is None:
        raise TypeError(
            "cannot append None; s.user(...), s.assistant(...) and s.system(...) already append: "
            "write them without 's +=', or append sglang.user(...)"
        )
    kind = type(value).__name__
    hint = _HINTS.get(kind, "append text or an expression, str(...)?")
    raise TypeError(f"cannot append {kind} {value!r:.60}; {hint}")


_HINTS = {
    "ProgramState": "to continue with another program's body call it with the state: program(s)",
    "SglFunction": "call the program with the state: program(s)",
    "CompiledProgram": "call the program with the state: program(s)",
    "tuple": "a comma stands where + is meant?",
    "list": "append its parts one by one",
}


@dataclass(frozen=True)
class Chain(Node):
    """Several nodes, one after the other."""

    parts: tuple[Node, ...]

    def flat(self) -> Iterator[Node]:
        for part in self.parts:
            yield from part.flat()


@dataclass(frozen=True)
class ConstantText(Node):
    text: str


@dataclass(frozen=True)
class Gen(Node):
    """Text generated until a stop or a limit, kept in variable ``name`` if it has one."""

    blocking = True
    name: str | None = None
    params: GenParams = field(default_factory=GenParams)

    def names(self) -> Sequence[str]:
        return () if self.name is None else (self.name,)


@dataclass(frozen=True)
class Select(Node):
    """The most likely of ``choices``.

    ``method`` is the name of a method in ``choices.py``, or a method of the program's own.
    """

    blocking = True
    name: str | None
    choices: tuple[str, ...]
    method: str | ChoicesMethod

    def names(self) -> Sequence[str]:
        return () if self.name is None else (self.name,)


@dataclass(frozen=True)
class RunTool(Node):
    """Text that the program's function ``tool`` returns, kept in variable ``name``.

    Attributes:
        of: the value whose text is the function's argument; empty if it has no argument.
        timeout: most seconds that the function may take; None: no limit.
        expected_seconds: expected duration; the backend may keep the KV of the text so far
            meanwhile.
    """

    blocking = True
    name: str
    tool: str
    of: tuple[Any, ...] = ()
    timeout: float | None = None
    expected_seconds: float | None = None

    def names(self) -> Sequence[str]:
        return (self.name,)


@dataclass(frozen=True)
class Image(Node):
    """An image or a video. ``source`` is a Media, or a reference to one in a graph. ``kind`` and
    ``num_frames`` belong to a source that is not read yet."""

    source: Any
    kind: str = "image"
    num_frames: int = 0


@dataclass(frozen=True)
class SeparateReasoning(Node):
    """The gens in ``parts`` generate reasoning first, as models of ``model_type`` do.

    The variable of each gen is its answer, ``NAME_reasoning_content`` its reasoning. The state's
    text continues after the answer, without the reasoning.
    """

    blocking = True
    parts: tuple[Node, ...]
    model_type: str

    def names(self) -> Sequence[str]:
        made = [name for part in self.parts for name in part.names()]
        return [*made, *(name + REASONING for name in made)]


def tools_of(node: Node) -> list[str]:
    """Return the names of the tools that a node runs."""
    parts = node.parts if isinstance(node, SeparateReasoning) else (node,)
    return [part.tool for part in parts if isinstance(part, RunTool)]


@dataclass(frozen=True)
class RoleBegin(Node):
    role: str


@dataclass(frozen=True)
class RoleEnd(Node):
    role: str


@dataclass(frozen=True)
class ScopeBegin(Node):
    name: str


@dataclass(frozen=True)
class ScopeEnd(Node):
    """The end of a scope: variable ``name`` is the text since its ScopeBegin."""

    name: str

    def names(self) -> Sequence[str]:
        return (self.name,)


@dataclass(frozen=True)
class SetVariable(Node):
    name: str
    value: Any

    def names(self) -> Sequence[str]:
        return (self.name,)


@dataclass(frozen=True)
class NamedVariable:
    """A reference to the variable ``name`` of the state that a node is appended to."""

    name: str


@dataclass(frozen=True)
class Transformed(Node):
    """Variable ``name`` is the value ``of[0]`` after ``transforms``, which are in the form that is
    sent to the server (``semantics/transforms``)."""

    name: str
    of: tuple[Any, ...]
    transforms: tuple[dict[str, Any], ...]

    def names(self) -> Sequence[str]:
        return (self.name,)


@dataclass(frozen=True)
class Flush(Node):
    """Request the gens of an open assistant turn that API speculation has deferred."""

    blocking = True


@dataclass(frozen=True)
class Parallel(Node):
    """Append ``texts`` and the turns in ``messages``. Each text is encoded independently of the
    others."""

    texts: tuple[str, ...]
    messages: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Fork(Node):
    """Start the streams ``children``, each with a copy of the text so far."""

    children: tuple[int, ...]
