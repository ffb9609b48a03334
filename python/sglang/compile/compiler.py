"""Compiler: a program without its Python source (SGLang paper, appendix D)."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang.backend.base import Backend
from sglang.compile.graph_runner import Plan, Replay
from sglang.compile.splice import Splice
from sglang.compile.tracer import Recorder, trace
from sglang.ir.graph import Graph
from sglang.ir.graph_steps import REQUIRED, Parameter
from sglang.program import SglFunction
from sglang.state import ProgramState

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def compile(program: SglFunction, backend: Any = None, **known: Any) -> CompiledProgram:
    """``program`` traced, with the arguments ``known`` fixed. ``backend`` is used where a run names
    none. Raises as ``trace`` does."""
    return CompiledProgram(trace(program, known), backend)


def load(path: str | os.PathLike[str], backend: Any = None) -> CompiledProgram:
    """A program that ``CompiledProgram.save`` wrote. Raises OSError and, for any other file,
    ValueError."""
    return CompiledProgram(Graph.from_json(Path(path).read_text(encoding="utf-8")), backend)


class CompiledProgram(SglFunction):
    """Runs a graph in all the ways that an ``SglFunction`` runs.

    A missing, unknown or fixed argument is a TypeError, as Python's own; so is None, which the
    tracer could not tell from other values.
    """

    def __init__(self, graph: Graph, backend: Any = None) -> None:
        graph.check()
        self.graph = graph
        self.backend = backend
        self._plan = Plan(graph)
        self._continued = _function(graph, Plan(graph, continued=True))
        super().__init__(_function(graph, self._plan), graph.num_api_spec_tokens)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``SglFunction.__call__``."""
        if args and isinstance(args[0], ProgramState):
            return self._continued(*args, **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph, for ``load``. Raises ValueError where it holds what JSON cannot."""
        Path(path).write_text(self.graph.to_json(), encoding="utf-8")

    def _resolved(self, backend: Any) -> Backend:
        return super()._resolved(self.backend if backend is None else backend)

    async def _abody(
        self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Any:
        values = _values(inspect.signature(self.func), state, *args, **arguments)
        return await Replay(self._plan, state._executor, values).submit().aresult()


def _function(graph: Graph, plan: Plan) -> Callable[..., Any]:
    """A function of a state and the graph's arguments that appends the graph to the state."""

    def replay(s: ProgramState, *args: Any, **kwargs: Any) -> Any:
        values, executor = _values(signature, s, *args, **kwargs), s._executor
        if isinstance(executor, Recorder):
            return Splice(graph, executor, values).submit()
        return Replay(plan, executor, values).submit().result()

    state = inspect.Parameter("s", POSITIONAL)
    signature = inspect.Signature([state, *map(_declared, graph.arguments)])
    replay.__name__ = replay.__qualname__ = graph.name
    replay.__signature__ = signature  # type: ignore[attr-defined]
    return replay


def _values(signature: inspect.Signature, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The graph's arguments by name. Raises TypeError where they do not fit ``signature``."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = {name: value for name, value in bound.arguments.items() if name != "s"}
    nothing = [name for name, value in values.items() if value is None]
    if nothing:
        raise TypeError(
            f"argument {nothing[0]!r} is None, which a compiled program does not take: "
            f"compile({nothing[0]}=None)"
        )
    return values


def _declared(parameter: Parameter) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if parameter.keyword else POSITIONAL
    default = inspect.Parameter.empty if parameter.default is REQUIRED else parameter.default
    return inspect.Parameter(parameter.name, kind, default=default)
