"""A graph as JSON and back.

    {"version": 1, "name": ..., "arguments": [...], "streams": [...], "result": ...}

A node is ``{"op": its class, field: value, ...}``; a field that has its default is left out. Among
values, an object with one key that begins with "$" stands for what JSON has not: ``$tuple``,
``$dict``, ``$argument``, ``$variable``, ``$media``.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from sglang.errors import Location
from sglang.ir import nodes as ir
from sglang.ir.choices import METHODS, ChoicesMethod
from sglang.ir.graph import (
    REQUIRED,
    Argument,
    Call,
    GetForkItem,
    Graph,
    Join,
    Parameter,
    Step,
    Variable,
)
from sglang.ir.media import Media
from sglang.ir.nodes import Node
from sglang.ir.params import NAMES, GenParams, given

VERSION = 1
OPS: dict[str, type[Node]] = {
    op.__name__: op
    for op in (
        ir.ConstantText, ir.Gen, ir.Select, ir.Image, ir.SeparateReasoning, ir.RoleBegin,
        ir.RoleEnd, ir.ScopeBegin, ir.ScopeEnd, ir.SetVariable, ir.Fork,
        Argument, Variable, GetForkItem, Call, Join,
    )
}  # fmt: skip
GRAPH_FIELDS = ("version", "name", "arguments", "streams", "result", "num_api_spec_tokens")


def to_json(graph: Graph) -> str:
    """See ``Graph.to_json``."""
    body = {
        "version": VERSION,
        "name": graph.name,
        "arguments": [_parameter(parameter) for parameter in graph.arguments],
        "streams": [
            {"stream": number, "steps": [_step(step) for step in steps]}
            for number, steps in graph.streams.items()
        ],
        "result": _encoded(graph.result, "the result"),
        "num_api_spec_tokens": graph.num_api_spec_tokens,
    }
    return json.dumps(body, ensure_ascii=False, indent=1)


def from_json(text: str) -> Graph:
    """See ``Graph.from_json``. The graph is checked."""
    try:
        graph = _graph(json.loads(text))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the text is not a graph: {type(error).__name__}: {error}") from error
    graph.check()
    return graph


def _graph(content: Any) -> Graph:
    body = _fields(content, "the graph", GRAPH_FIELDS, GRAPH_FIELDS[:5])
    if body["version"] != VERSION:
        raise ValueError(f"the graph has version {body['version']!r}; this sglang reads {VERSION}")
    return Graph(
        name=body["name"],
        arguments=tuple(map(_read_parameter, body["arguments"])),
        streams=dict(map(_read_stream, body["streams"])),
        result=_decoded(body["result"]),
        num_api_spec_tokens=body.get("num_api_spec_tokens"),
    )


def _parameter(parameter: Parameter) -> dict[str, Any]:
    body: dict[str, Any] = {"name": parameter.name}
    if parameter.keyword:
        body["keyword"] = True
    if parameter.default is not REQUIRED:
        what = f"the default of argument {parameter.name!r}"
        body["default"] = _encoded(parameter.default, what)
    return body


def _read_parameter(body: Any) -> Parameter:
    fields = _fields(body, "an argument", ("name", "default", "keyword"), ("name",))
    default = _decoded(fields["default"]) if "default" in fields else REQUIRED
    return Parameter(fields["name"], default, fields.get("keyword", False))


def _step(step: Step) -> dict[str, Any]:
    where = {"at": list(step.location)} if step.location else {}
    return {"number": step.number, **_node(step.node, str(step)), **where}


def _read_stream(body: Any) -> tuple[int, tuple[Step, ...]]:
    fields = _fields(body, "a stream", ("stream", "steps"), ("stream", "steps"))
    return fields["stream"], tuple(map(_read_step, fields["steps"]))


def _read_step(body: Any) -> Step:
    if not isinstance(body, dict) or not isinstance(body.get("number"), int):
        raise ValueError(f"a step is an object with a number, not {body!r:.80}")
    rest = {name: value for name, value in body.items() if name not in ("number", "at")}
    location = Location(*body["at"]) if "at" in body else None
    return Step(body["number"], _read_node(rest, f"step {body['number']}"), location)


def _node(node: Node, what: str) -> dict[str, Any]:
    body: dict[str, Any] = {"op": type(node).__name__}
    for f in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, f.name)
        if isinstance(value, GenParams):
            body[f.name] = _params(value, what)
        elif value != f.default:
            body[f.name] = _encoded(value, what)
    return body


def _read_node(body: Mapping[str, Any], what: str) -> Node:
    op = OPS.get(body.get("op", ""))
    if op is None:
        raise ValueError(f"{what} has op {body.get('op')!r}; the ops are {sorted(OPS)}")
    declared = dataclasses.fields(op)  # type: ignore[arg-type]
    needed = [
        f.name
        for f in declared
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    fields = _fields(body, f"{what} ({op.__name__})", ("op", *(f.name for f in declared)), needed)
    values = {name: _read_field(name, value, what) for name, value in fields.items()}
    del values["op"]
    return op(**values)


def _read_field(name: str, value: Any, what: str) -> Any:
    if name == "params":
        fields = _fields(value, f"{what} (params)", NAMES, ())
        return GenParams(**{field: _decoded(item) for field, item in fields.items()})
    if name == "parts":
        return tuple(_read_node(part, what) for part in value["$tuple"])
    if name == "method":
        if value not in METHODS:
            raise ValueError(f"{what} has method {value!r}; use one of {sorted(METHODS)}")
        return METHODS[value]
    return _decoded(value)


def _params(params: GenParams, what: str) -> dict[str, Any]:
    values = given(params)
    if isinstance(params.dtype, type):
        values["dtype"] = params.dtype.__name__
    for name in ("schema", "json_schema"):
        if name in values and not isinstance(values[name], (str, dict)):
            from sglang.backend.output_types import json_schema_of

            values[name] = json_schema_of(values[name])
    return {name: _encoded(value, f"{name} of {what}") for name, value in values.items()}


def _encoded(value: Any, what: str) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list):
        return [_encoded(item, what) for item in value]
    if type(value) is tuple:
        return {"$tuple": [_encoded(item, what) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return {"$dict": [[key, _encoded(item, what)] for key, item in value.items()]}
    if isinstance(value, Argument):
        return {"$argument": value.name}
    if isinstance(value, Variable):
        return {"$variable": [value.source, value.name]}
    if isinstance(value, Media):
        return {"$media": {**vars(value), "data": value.base64}}
    if isinstance(value, ChoicesMethod) and METHODS.get(value.name) is value:
        return value.name
    if isinstance(value, Node):
        return _node(value, what)
    raise ValueError(f"{what} holds {value!r:.60}, which JSON cannot carry: use text or numbers")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "$tuple":
            return tuple(_decoded(item) for item in content)
        if kind == "$dict":
            return {key: _decoded(item) for key, item in content}
        if kind == "$argument":
            return Argument(content)
        if kind == "$variable":
            return Variable(*content)
        if kind == "$media":
            return Media(**{**content, "data": base64.b64decode(content["data"])})
    raise ValueError(f"{value!r:.60} is not a value that to_json writes")


def _fields(
    body: Any, what: str, known: tuple[str, ...], needed: tuple[str, ...] | list[str]
) -> dict[str, Any]:
    """``body``, an object with no other fields than the known ones and all that are needed."""
    if not isinstance(body, dict):
        raise ValueError(f"{what} is {body!r:.60}; it must be an object")
    unknown = [name for name in body if name not in known]
    if unknown:
        raise ValueError(f"{what} has field {unknown[0]!r}; the fields are {list(known)}")
    missing = [name for name in needed if name not in body]
    if missing:
        raise ValueError(f"{what} has no field {missing[0]!r}")
    return body
