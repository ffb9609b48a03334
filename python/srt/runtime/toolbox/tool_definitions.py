"""Tool definitions: descriptions of Python functions for a model, from signature and docstring."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def definition_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the function in OpenAI's form of a tool.

    The description is the docstring's first paragraph. The schema of an argument follows from its
    annotation: str, int, float, bool, None, Literal, list, dict, unions of these, and Annotated,
    whose text is the description. Raise ValueError, naming function and parameter, for any other.
    """
    name = getattr(function, "__name__", "")
    if not callable(function) or not NAME.fullmatch(name):
        raise ValueError(f"{function!r:.60} is no function with a name of 1 to 64 ASCII letters, "
                         "digits, underscores and hyphens")  # fmt: skip
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"{name} yields: a tool returns its result")
    hints = typing.get_type_hints(function, include_extras=True)
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        where = f"parameter {parameter.name} of {name}"
        if parameter.kind not in _KINDS:
            raise ValueError(f"{where} cannot be given by name; calls name their arguments")
        schema = schema_of(hints.get(parameter.name, Any), where)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):
            schema = {**schema, "default": parameter.default}
        properties[parameter.name] = schema
    found: dict[str, Any] = {"name": name, "strict": True}
    if text := inspect.getdoc(function):
        found["description"] = " ".join(text.split("\n\n")[0].split())
    schema = {"type": "object", "properties": properties, "required": required}
    found["parameters"] = {**schema, "additionalProperties": False}
    return {"type": "function", "function": found}


def schema_of(hint: Any, where: str) -> dict[str, Any]:
    """Return the JSON schema of an annotation. Raise ValueError, naming ``where``, for an
    unsupported annotation."""
    if hint is Any or hint is inspect.Parameter.empty:
        return {}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        texts = [one for one in arguments[1:] if isinstance(one, str)]
        described = {"description": texts[0]} if texts else {}
        return {**schema_of(arguments[0], where), **described}
    if origin is typing.Literal and all(_is_json(one) for one in arguments):
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(one, where) for one in arguments]}
    if hint is list or (origin is list and len(arguments) == 1):
        return {"type": "array", **({"items": schema_of(arguments[0], where)} if arguments else {})}
    if hint is dict or (origin is dict and arguments[0] is str):
        more = {"additionalProperties": schema_of(arguments[1], where)} if arguments else {}
        return {"type": "object", **more}
    raise ValueError(
        f"{where} is annotated {hint!r:.60}; use str, int, float, bool, None, Literal, list, "
        "dict[str, ...], unions of them, or Annotated"
    )


def definitions_of(functions: Any, where: str) -> dict[str, dict[str, Any]]:
    """Return the definitions of a list of functions by name. Raise ValueError for another value."""
    if isinstance(functions, Mapping) or not isinstance(functions, (list, tuple)) or not functions:
        raise ValueError(f"{where} is {functions!r:.60}; it must be a list of functions")
    found: dict[str, dict[str, Any]] = {}
    for function in functions:
        definition = definition_of(function)
        name = definition["function"]["name"]
        if name in found:
            raise ValueError(f"{where} has two functions named {name}")
        found[name] = definition
    return found


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
