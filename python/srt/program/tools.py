"""Tools: how a model writes calls of functions, and how its text is read.

A ToolFormat is one way of writing calls. ``Hermes`` is that of the Hermes and Qwen models:

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from srt.core.constraint import Constraint
from srt.program.tool_parser import BEGIN, END, HermesParser, ToolParser


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Attributes:
        place: which one of the request's.
        parameters: JSON schema of the arguments, an object.
        strict: a call that the model chooses to make has to fit the schema.
        definition: what the user wrote, for the chat template.
    """

    place: int
    name: str
    parameters: Mapping[str, Any]
    strict: bool
    definition: Mapping[str, Any]


class ToolFormat(Protocol):
    """One way of writing calls. ``marks`` are the texts by which the parser knows a call."""

    marks: tuple[str, ...]

    def calls(self, tools: Sequence[Tool], many: bool, answer: Any = None) -> Constraint:
        """Text is a call of one of ``tools``, or several where ``many``. With ``answer``, a JSON
        schema, it may instead be JSON that satisfies it."""
        ...

    def tagged(self, tools: Sequence[Tool]) -> Constraint:
        """Text is free; a call in it is one of ``tools``, and fits its schema if that is strict."""
        ...

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        """A reader of one text, that finds calls of ``tools`` in it."""
        ...

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Names and arguments as the model writes them, for a template that knows no calls."""
        ...

    def introduction(self, tools: Sequence[Tool]) -> str:
        """What tells a model of the tools, for a template that knows none."""
        ...


class Hermes:
    """See the module."""

    marks: tuple[str, ...] = (BEGIN, END)

    def calls(self, tools: Sequence[Tool], many: bool, answer: Any = None) -> Constraint:
        tags = [
            {
                "type": "tag",
                "begin": _head(tool),
                "content": {"type": "json_schema", "json_schema": tool.parameters},
                "end": _TAIL,
            }
            for tool in tools
        ]
        form: dict[str, Any] = {
            "type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True,
            "stop_after_first": not many,
        }  # fmt: skip
        if answer is not None:
            other = {"type": "json_schema", "json_schema": answer}
            form = {"type": "or", "elements": [form, other]}
        return _tag({"format": form})

    def tagged(self, tools: Sequence[Tool]) -> Constraint:
        structures = [
            {
                "begin": _head(tool),
                "schema": tool.parameters if tool.strict else {"type": "object"},
                "end": _TAIL,
            }
            for tool in tools
        ]
        return _tag({"structures": structures, "triggers": [BEGIN]})

    def parser(self, tools: Sequence[Tool]) -> ToolParser:
        return HermesParser({tool.name for tool in tools})

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        return "\n".join(
            f"{BEGIN}\n{_json({'name': name, 'arguments': arguments})}\n{END}"
            for name, arguments in calls
        )

    def introduction(self, tools: Sequence[Tool]) -> str:
        listed = "\n".join(_json(tool.definition) for tool in tools)
        return (
            f"You may call these functions:\n<tools>\n{listed}\n</tools>\n"
            "To call one, answer with its name and arguments as JSON:\n"
            f'{BEGIN}\n{{"name": NAME, "arguments": ARGUMENTS}}\n{END}'
        )


_SPACE = " ?"  # these models have learnt a space behind commas and colons
_TAIL = f"}}\n{END}"


def _head(tool: Tool) -> str:
    return f'{BEGIN}\n{{"name": "{tool.name}", "arguments": '


def _tag(fields: Mapping[str, Any]) -> Constraint:
    return Constraint("structural_tag", _json({"type": "structural_tag", **fields}), _SPACE)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
