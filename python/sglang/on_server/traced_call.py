"""Graph of one call of a program, with texts and futures among the arguments kept open."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang.compile.tracer import trace_with_tools
from sglang.compile.unknown_values import Unknown
from sglang.errors import TraceError
from sglang.ir.graph import Graph
from sglang.ir.graph_steps import Argument, OpenArgument, rebuild
from sglang.run.live_nodes import Promised, Tools
from sglang.state import Program

VAR_POSITIONAL, VAR_KEYWORD = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


def traced_call(
    program: Program, args: Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[Graph, Tools, dict[str, Any]]:
    """Return the graph of a call, the functions of its tools and its open arguments.

    Arguments that are texts or promises stay open, so that calls with other texts have the same
    graph. If the program's flow needs one of the texts, only promises stay open.

    Raises:
        TraceError: the flow needs a value that only a run knows; the message has the line.
        TypeError: the arguments do not fit the program.
    """
    values = _values(program, args, arguments)
    try:
        return _traced(program, values, lambda value: isinstance(value, (str, Promised)))
    except TraceError:
        return _traced(program, values, lambda value: isinstance(value, Promised))


def _values(program: Program, args: Sequence[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, with defaults. Raise TypeError if they do not fit."""
    signature = inspect.signature(program.func)
    bound = signature.bind(None, *args, **{**program.bound, **arguments})
    bound.apply_defaults()
    values = dict(list(bound.arguments.items())[1:])
    for name, parameter in signature.parameters.items():
        if parameter.kind is VAR_KEYWORD:
            values.update(values.pop(name))
        elif parameter.kind is VAR_POSITIONAL and values.pop(name):
            raise TypeError(
                f"{program.func.__name__} takes *{name}, which a program on a server does not; "
                "give a list as one argument"
            )
    return values


def _traced(
    program: Program, values: Mapping[str, Any], open_: Callable[[Any], bool]
) -> tuple[Graph, Tools, dict[str, Any]]:
    found: dict[str, Any] = {}

    def known(name: str, value: Any) -> Any:
        """Replace open parts of ``value`` by Unknowns: itself, or promises in lists and dicts."""
        if open_(value):
            found[name] = value
            return Unknown(Argument(name))

        def leaf(inner: Any) -> Any:
            return known(_unused(f"{name}_", values, found), inner) if _is(inner) else inner

        return rebuild(value, leaf) if isinstance(value, (list, tuple, dict)) else value

    given = {name: known(name, value) for name, value in values.items()}
    graph, tools = trace_with_tools(program, given)
    arguments = tuple(map(OpenArgument, found))
    return dataclasses.replace(graph, arguments=arguments), tools, found


def _is(value: Any) -> bool:
    return isinstance(value, Promised)


def _unused(begin: str, *taken: Mapping[str, Any]) -> str:
    number = 0
    while any(f"{begin}{number}" in names for names in taken):
        number += 1
    return f"{begin}{number}"
