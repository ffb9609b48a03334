"""ProgramTool: a tool of ``gen(tools=...)``, made of a function, a type or a JSON definition."""

from __future__ import annotations

import inspect
import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from sglang.backend import output_types
from sglang.backend.tool_invocation import tool_name
from sglang.errors import InvalidOutput
from sglang.semantics.tool_calls.tool_format import Tool

MAX_TOOLS = 128
DESCRIPTION_CHARS = 4000
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
KINDS = "a function, a pydantic model or another type with fields, or a JSON definition as a dict"
NO_ARGUMENTS = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class ProgramTool:
    """A tool that a model may call.

    Attributes:
        parameters: JSON schema of the arguments, an object.
        function: called with keyword arguments. None: the program answers the call.
        reads: type or JSON schema that validates the arguments.
        keys: for a function, the field of ``reads`` of each parameter.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any] | None
    reads: Any
    keys: Mapping[str, str]

    @cached_property
    def definition(self) -> dict[str, Any]:
        """Name, description and parameters, as APIs and templates show them."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }

    def in_format(self, place: int) -> Tool:
        """Return the tool for a format of calls. ``place``: index among the tools."""
        shown = {"type": "function", "function": self.definition}
        return Tool(place, self.name, self.parameters, True, shown)

    def argued(self, text: str) -> Any:
        """Return the arguments of a JSON text: a dict of keyword arguments for a function, an
        object for a type, a dict for a definition. Raise InvalidOutput."""
        found = output_types.parse(self.reads, text or "{}")
        if self.function is None:
            return found
        given = found.model_fields_set
        return {name: getattr(found, key) for name, key in self.keys.items() if key in given}


def tools_of(given: Any) -> tuple[ProgramTool, ...]:
    """Return the tools of ``gen(tools=...)``. Raise TypeError or ValueError for an invalid tool,
    too many tools, or two with the same name."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise TypeError(f"tools is {given!r:.60}; give a list of tools: {KINDS}")
    if not given:
        raise ValueError("tools is empty; give at least one tool, or leave it out")
    if len(given) > MAX_TOOLS:
        raise ValueError(f"tools has {len(given)} entries; at most {MAX_TOOLS}.")
    tools = tuple(one if isinstance(one, ProgramTool) else tool_of(one) for one in given)
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise ValueError(f"two tools are named {tool.name!r}; rename one")
        seen.add(tool.name)
    return tools


def tool_of(given: Any) -> ProgramTool:
    """Return the tool of a function, type or definition. Raise TypeError or ValueError."""
    if isinstance(given, Mapping):
        return _of_definition(given)
    if hasattr(given, "arg_names") and hasattr(given, "run_batch"):
        name = given.func.__name__
        raise TypeError(
            f"tool {name!r} is a program; give a function that runs it, such as "
            f"def ask(question: str): return {name}.run(question).ret_value"
        )
    if isinstance(given, type):
        return _of_type(given)
    if callable(given):
        return _of_function(given)
    raise TypeError(f"a tool is {given!r:.60}; give {KINDS}")


def _of_definition(given: Mapping[str, Any]) -> ProgramTool:
    """Return the tool of a definition in OpenAI's form or Anthropic's (``input_schema``)."""
    inner = given.get("function", given)
    if not isinstance(inner, Mapping):
        raise TypeError(f"the tool's function is {inner!r:.60}; give a dict with name, parameters")
    parameters = inner.get("parameters", inner.get("input_schema")) or NO_ARGUMENTS
    schema = _schema_of(inner.get("name"), parameters)
    if schema.get("type", "object") != "object":
        raise ValueError(
            f"parameters of tool {inner.get('name')!r} are of type {schema['type']!r}; the "
            "arguments of a call are an object"
        )
    schema = {"type": "object", **schema}
    return _named(str(inner.get("name", "")), inner.get("description") or "", schema, None, schema)


def _schema_of(name: Any, parameters: Any) -> dict[str, Any]:
    """Return the schema of a definition's parameters. Errors name the tool."""
    try:
        return output_types.json_schema_of(parameters)
    except (TypeError, ValueError) as error:
        said = str(error).removeprefix("json_schema")
        raise type(error)(f"the schema of tool {name!r:.80}{said}") from error


def _of_type(given: type) -> ProgramTool:
    schema = output_types.closed(output_types.json_schema_of(given))
    if schema.get("type") != "object" and "$ref" not in schema:
        raise TypeError(f"tool {given.__name__!r} has no fields; give {KINDS}")
    said = inspect.getdoc(given) if given.__doc__ else ""
    own = "" if (said or "").startswith(f"{given.__name__}(") else said  # a dataclass's own text
    return _named(given.__name__, own or "", _flat(schema), None, given)


def _of_function(given: Callable[..., Any]) -> ProgramTool:
    name = tool_name(given)
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise TypeError(f"tool {name!r} yields: a tool returns its result; use return")
    reads, keys = _arguments(name, given)
    schema = _untitled(output_types.closed(output_types.json_schema_of(reads)))
    return _named(name, inspect.getdoc(given) or "", schema, given, reads, keys)


def _arguments(name: str, function: Callable[..., Any]) -> tuple[Any, dict[str, str]]:
    """Return a pydantic model of a function's parameters, and its field for each parameter. Fields
    have other names than parameters, so that a parameter may have any name."""
    from pydantic import ConfigDict, Field, create_model
    from pydantic.errors import PydanticUserError

    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = get_type_hints(_annotated(function), include_extras=True)
    except (ValueError, NameError, TypeError) as error:
        raise TypeError(f"the parameters of tool {name!r} cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for number, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"tool {name!r} takes {parameter.name!r} of any number; a model gives arguments by "
                "name: give each a parameter of its own"
            )
        keys[parameter.name] = key = f"argument_{number}"
        optional = parameter.default is not parameter.empty
        default = parameter.default if optional else ...
        fields[key] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields), keys
    except PydanticUserError as error:
        why = " ".join(error.message.partition("\n\n")[0].split())
        raise TypeError(f"no JSON schema can be made of the parameters of tool {name!r}: {why}; "
                        "annotate them with types that JSON can hold") from error  # fmt: skip


def _annotated(function: Callable[..., Any]) -> Any:
    """Return the object with the annotations: for a callable object, its ``__call__`` method."""
    if inspect.isroutine(function) or hasattr(function, "__wrapped__"):
        return function
    return getattr(function, "func", None) or type(function).__call__


def _named(
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    function: Callable[..., Any] | None,
    reads: Any,
    keys: Mapping[str, str] | None = None,
) -> ProgramTool:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"a tool is named {name!r:.80}; use 1 to 64 letters, digits, underscores and hyphens"
        )
    description = description.strip()[:DESCRIPTION_CHARS]
    return ProgramTool(name, description, parameters, function, reads, keys or {})


def _flat(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with a ``$ref`` at the top, of a recursive type, resolved; no titles."""
    whole = dict(schema)
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        whole = {**schema["$defs"][name], "$defs": schema["$defs"]}
    untitled: dict[str, Any] = _untitled(whole)
    return untitled


def _untitled(schema: Any) -> Any:
    """Return the schema without pydantic's titles, which repeat the names for the model."""
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: v for k, v in schema.items() if k != "title" or not isinstance(v, str)}
    named = {"properties", "$defs"}
    return {
        key: {name: _untitled(one) for name, one in value.items()} if key in named
        else value if key in ("const", "default", "enum", "examples", "required")
        else _untitled(value)
        for key, value in kept.items()
    }  # fmt: skip


def text_of_result(tool: str, value: Any) -> str:
    """Return a tool's return value as text for the model: a text unchanged, "" for None, else JSON.
    Raise ValueError for a value that JSON cannot represent."""
    from pydantic_core import PydanticSerializationError, to_json

    if value is None or isinstance(value, str):
        return value or ""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ValueError(
            f"tool {tool!r} returned {reprlib.repr(value):.60}, which JSON cannot carry; return "
            "a text, None, numbers, lists, dicts, dataclasses or pydantic models"
        ) from error


def arguments_shown(text: str) -> dict[str, Any]:
    """Return the arguments of a call as a dict, {} if the text is not a JSON object."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


__all__ = ["InvalidOutput", "ProgramTool", "arguments_shown", "text_of_result", "tool_of",
           "tools_of"]  # fmt: skip
