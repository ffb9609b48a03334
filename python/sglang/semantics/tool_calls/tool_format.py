"""Tools: the functions a model may call, and what a way of writing calls of them has to say.

The ways themselves are in ``tool_formats``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sglang.ir.constraint import Constraint
from sglang.semantics.tool_calls.tool_parser import ToolParser


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Attributes:
        place: index among the request's tools.
        parameters: JSON schema of the arguments, an object.
        strict: a call that the model chooses to make has to fit the schema.
        definition: what the user wrote, for the chat template.
    """

    place: int
    name: str
    parameters: Mapping[str, Any]
    strict: bool
    definition: Mapping[str, Any]


class Plain:
    """A format in which results are messages of the role ``tool``."""

    def result(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return dict(message)


Form = dict[str, Any]  # a ``format`` of a structural tag
Calls = Sequence[tuple[str, Mapping[str, Any]]]  # names and arguments


class ToolFormat(Protocol):
    """One way of writing calls, ``name``. ``marks`` are the texts by which the parser knows a
    call."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]: ...

    def calls(self, tools: Sequence[Tool], many: bool) -> Form:
        """Text that is a call of one of ``tools``, or several where ``many``."""
        ...

    def tagged(self, tools: Sequence[Tool]) -> Form:
        """Text that is free; a call in it is one of ``tools``, and fits its schema if that is
        strict."""
        ...

    def parser(self, tools: Sequence[Tool], any_name: bool = False) -> ToolParser:
        """A reader of one text, that finds calls of ``tools`` in it. ``any_name``: and of others
        after ``marks``, where the model was not held to the tools."""
        ...

    def written(self, calls: Calls) -> str:
        """Names and arguments as the model writes them, for a template that knows no calls."""
        ...

    def result(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message that tells a tool's result, for a template that knows no calls."""
        ...

    def introduction(self, tools: Sequence[Tool]) -> str:
        """Text that introduces the tools to a model whose template has no room for tools."""
        ...


def constraint_of(form: Form, space: str | None = " ?") -> Constraint:
    """``space``: models have learnt one after the commas and colons of JSON."""
    text = to_json({"type": "structural_tag", "format": form})
    return Constraint("structural_tag", text, space)


def form_of(constraint: Constraint) -> Form | None:
    """The same as a part of a structural tag; None where it can be none."""
    if constraint.kind == "json_schema":
        return schema(json.loads(constraint.text))
    if constraint.kind == "regex":
        return {"type": "regex", "pattern": constraint.text}
    if constraint.kind == "choices":
        return either(*map(constant, constraint.choices()))
    if constraint.kind == "structural_tag":
        form: Form | None = json.loads(constraint.text).get("format")
        return form
    return None


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def listed(tools: Sequence[Tool]) -> str:
    """The definitions, one a line."""
    return "\n".join(to_json(tool.definition) for tool in tools)


def constant(text: str) -> Form:
    return {"type": "const_string", "value": text}


def schema(value: Any) -> Form:
    return {"type": "json_schema", "json_schema": value}


def sequence(*elements: Form) -> Form:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Form) -> Form:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def tag(begin: str, content: Form, end: str) -> Form:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def repeated(tags: Sequence[Form], separator: str, many: bool) -> Form:
    """One of the tags, or several where ``many``."""
    return {"type": "tags_with_separator", "tags": list(tags), "separator": separator,
            "at_least_one": True, "stop_after_first": not many}  # fmt: skip


def arguments_of(tool: Tool, always: bool) -> Any:
    """The schema that a call is held to; without ``always`` only if the tool is strict."""
    return tool.parameters if always or tool.strict else {"type": "object"}


def plain_lines(first: str) -> Form:
    """Text of which no line begins with ``first``, and in which no tag of a control token stands:
    a parser that looks for calls there finds none."""
    rest = r"([^\n<]|<+[^|<\n])*<*"
    begin = "".join(f"\\{char}" for char in first)
    line = rf"[ \t\r]*([^ \t\r\n<{begin}]{rest}|<+[^|<\n]{rest}|<+)?"
    return {"type": "regex", "pattern": rf"{line}(\n{line})*"}
