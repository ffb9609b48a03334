"""Steps and values of a graph as JSON, and back.

A node is ``{"op": its class, field: value, ...}``; a field that has its default is left out. Among
values, an object with one key that begins with "$" stands for a value that JSON lacks: ``$tuple``,
``$dict``, ``$argument``, ``$variable``, ``$sum`` (of texts), ``$media``.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any

from sglang.ir import nodes as ir
from sglang.ir.choices import METHODS, ChoicesMethod
from sglang.ir.graph_steps import (
    REQUIRED,
    Argument,
    Call,
    GetForkItem,
    Join,
    OpenArgument,
    Step,
    Variable,
)
from sglang.ir.nodes import Node
from sglang.ir.params import NAMES, GenParams, TypedSchema, given
from sglang.ir.prompt_media import Media
from sglang.ir.source_location import Location

OPS: dict[str, type[Node]] = {
    op.__name__: op
    for op in (
        ir.ConstantText, ir.Gen, ir.Select, ir.Image, ir.SeparateReasoning, ir.RoleBegin,
        ir.RoleEnd, ir.ScopeBegin, ir.ScopeEnd, ir.SetVariable, ir.Fork, ir.RunTool,
        ir.Transformed,
        Argument, Variable, GetForkItem, Call, Join,
    )
}  # fmt: skip


def encode_parameter(parameter: OpenArgument) -> dict[str, Any]:
    """Return an argument of the graph as JSON data."""
    body: dict[str, Any] = {"name": parameter.name}
    if parameter.keyword:
        body["keyword"] = True
    if parameter.default is not REQUIRED:
        what = f"the default of argument {parameter.name!r}"
        body["default"] = encode_value(parameter.default, what)
    return body


def decode_parameter(body: Any) -> OpenArgument:
    """Return the argument that ``encode_parameter`` made. Raise ValueError for other data."""
    fields = fields_of(body, "an argument", ("name", "default", "keyword"), ("name",))
    default = decode_value(fields["default"]) if "default" in fields else REQUIRED
    return OpenArgument(fields["name"], default, fields.get("keyword", False))


def encode_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON data. Raise ValueError for a value that JSON cannot carry."""
    where = {"at": list(step.location)} if step.location else {}
    return {"number": step.number, **_node(step.node, str(step)), **where}


def decode_step(body: Any) -> Step:
    """Return the step that ``encode_step`` made. Raise ValueError for other data."""
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
            body[f.name] = encode_value(value, what)
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
    fields = fields_of(body, f"{what} ({op.__name__})", ("op", *(f.name for f in declared)), needed)
    values = {name: _read_field(name, value, what) for name, value in fields.items()}
    del values["op"]
    return op(**values)


def _read_field(name: str, value: Any, what: str) -> Any:
    if name == "params":
        fields = fields_of(value, f"{what} (params)", NAMES, ())
        return GenParams(**{field: decode_value(item) for field, item in fields.items()})
    if name == "parts":
        return tuple(_read_node(part, what) for part in value["$tuple"])
    if name == "method":
        if value not in METHODS:
            raise ValueError(f"{what} has method {value!r}; use one of {sorted(METHODS)}")
        return value
    return decode_value(value)


def _params(params: GenParams, what: str) -> dict[str, Any]:
    values = given(params)
    if isinstance(params.dtype, type):
        values["dtype"] = params.dtype.__name__
    for name in ("schema", "json_schema"):
        if isinstance(value := values.get(name), TypedSchema):
            values[name] = value.schema
    return {name: encode_value(value, f"{name} of {what}") for name, value in values.items()}


def encode_value(value: Any, what: str) -> Any:
    """Return a value as JSON data. Raise ValueError, naming ``what``, where JSON cannot."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list):
        return [encode_value(item, what) for item in value]
    if type(value) is tuple:
        return {"$tuple": [encode_value(item, what) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return {"$dict": [[key, encode_value(item, what)] for key, item in value.items()]}
    if isinstance(value, Argument):
        return {"$argument": value.name}
    if isinstance(value, Variable):
        return {"$variable": [value.source, value.name]}
    if isinstance(value, Media):
        return {"$media": {**vars(value), "data": value.base64}}
    if isinstance(value, ChoicesMethod) and METHODS.get(value.name) is value:
        return value.name
    if isinstance(value, ir.Chain):
        parts = [part.text if isinstance(part, ir.ConstantText) else part for part in value.parts]
        return {"$sum": encode_value(parts, what)}
    if isinstance(value, Node):
        return _node(value, what)
    raise ValueError(f"{what} holds {value!r:.60}, which JSON cannot carry: use text or numbers")


def decode_value(value: Any) -> Any:
    """Return the value that ``encode_value`` made. Raise ValueError for other data."""
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "$tuple":
            return tuple(decode_value(item) for item in content)
        if kind == "$dict":
            return {key: decode_value(item) for key, item in content}
        if kind == "$argument":
            return Argument(content)
        if kind == "$variable":
            return Variable(*content)
        if kind == "$sum":
            return ir.Chain(tuple(ir.node_of(decode_value(part)) for part in content))
        if kind == "$media":
            return Media(**{**content, "data": base64.b64decode(content["data"])})
    raise ValueError(f"{value!r:.60} is not a value that to_json writes")


def fields_of(
    body: Any, what: str, known: tuple[str, ...], needed: tuple[str, ...] | list[str]
) -> dict[str, Any]:
    """Return ``body``, an object. Raise ValueError for an unknown field or a missing one."""
    if not isinstance(body, dict):
        raise ValueError(f"{what} is {body!r:.60}; it must be an object")
    unknown = [name for name in body if name not in known]
    if unknown:
        raise ValueError(f"{what} has field {unknown[0]!r}; the fields are {list(known)}")
    missing = [name for name in needed if name not in body]
    if missing:
        raise ValueError(f"{what} has no field {missing[0]!r}")
    return body
