"""Compiler: a program without its Python source (SGLang paper, appendix D)."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sglang.backend.base import Backend
from sglang.graph import REQUIRED, Graph, Parameter
from sglang.program import SglFunction
from sglang.replay import Plan, Replay
from sglang.state import ProgramState
from sglang.tracer import trace

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

    def __init__(
        self, graph: Graph, backend: Any = None, bound: Mapping[str, Any] | None = None
    ) -> None:
        graph.check()
        replay, areplay = _functions(graph)
        super().__init__(replay, graph.num_api_spec_tokens, bound)
        self.graph = graph
        self.backend = backend
        self._asynchronous = SglFunction(areplay, graph.num_api_spec_tokens, bound)

    def bind(self, **arguments: Any) -> CompiledProgram:
        """``SglFunction.bind``."""
        bound = super().bind(**arguments).bound
        return CompiledProgram(self.graph, self.backend, bound)

    async def astart(self, *args: Any, **kwargs: Any) -> None:
        """``SglFunction.astart``."""
        await self._asynchronous.astart(*args, **kwargs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph, for ``load``. Raises ValueError where it holds what JSON cannot."""
        Path(path).write_text(self.graph.to_json(), encoding="utf-8")

    def _resolved(self, backend: Any) -> Backend:
        return super()._resolved(self.backend if backend is None else backend)


def _functions(graph: Graph) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function of a state and the graph's arguments that appends the graph to the state, and the
    same as a coroutine function."""
    plan = Plan(graph)
    state = inspect.Parameter("s", POSITIONAL)
    signature = inspect.Signature([state, *map(_declared, graph.arguments)])

    def submitted(s: ProgramState, *args: Any, **kwargs: Any) -> Replay:
        bound = signature.bind(s, *args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "s"}
        nothing = [name for name, value in arguments.items() if value is None]
        if nothing:
            raise TypeError(
                f"argument {nothing[0]!r} is None, which a compiled program does not take: "
                f"compile({nothing[0]}=None)"
            )
        replay = Replay(plan, s._executor, arguments)
        replay.submit()
        return replay

    def replay(s: ProgramState, *args: Any, **kwargs: Any) -> Any:
        return submitted(s, *args, **kwargs).result()

    async def areplay(s: ProgramState, *args: Any, **kwargs: Any) -> Any:
        return await submitted(s, *args, **kwargs).aresult()

    functions: tuple[Any, Any] = (replay, areplay)
    for function in functions:
        function.__name__ = function.__qualname__ = graph.name
        function.__signature__ = signature
    return functions


def _declared(parameter: Parameter) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if parameter.keyword else POSITIONAL
    default = inspect.Parameter.empty if parameter.default is REQUIRED else parameter.default
    return inspect.Parameter(parameter.name, kind, default=default)
