"""Hermes: how the Hermes and Qwen models write calls.

<tool_call>
{"name": "add", "arguments": {"a": 1, "b": 2}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang.semantics.tool_calls.deltas import Delta
from sglang.semantics.tool_calls.json_scan import SPACE
from sglang.semantics.tool_calls.tool_format import (
    Calls,
    Form,
    Plain,
    Tool,
    arguments_of,
    listed,
    repeated,
    schema,
    tag,
    to_json,
)
from sglang.semantics.tool_calls.tool_parser import ObjectParser, ToolParser

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes(Plain):
    """See the module."""

    name: str = "hermes"
    marks: tuple[str, ...] = (BEGIN, END)

    def calls(self, tools: Sequence[Tool], many: bool) -> Form:
        return repeated([_tag(tool, True) for tool in tools], "\n", many)

    def tagged(self, tools: Sequence[Tool]) -> Form:
        tags = [_tag(tool, False) for tool in tools]
        return {"type": "triggered_tags", "triggers": [BEGIN], "tags": tags}

    def parser(self, tools: Sequence[Tool], any_name: bool = False) -> ToolParser:
        return HermesParser({tool.name for tool in tools}, any_name)

    def written(self, calls: Calls) -> str:
        return "\n".join(
            f"{BEGIN}\n{to_json({'name': name, 'arguments': arguments})}\n{END}"
            for name, arguments in calls
        )

    def introduction(self, tools: Sequence[Tool]) -> str:
        return (
            f"You may call these functions:\n<tools>\n{listed(tools)}\n</tools>\n"
            "To call one, answer with its name and arguments as JSON:\n"
            f'{BEGIN}\n{{"name": NAME, "arguments": ARGUMENTS}}\n{END}'
        )


def _tag(tool: Tool, always: bool) -> Form:
    begin = f'{BEGIN}\n{{"name": "{tool.name}", "arguments": '
    return tag(begin, schema(arguments_of(tool, always)), f"}}\n{END}")


class HermesParser(ObjectParser):
    """JSON objects with ``name`` and ``arguments`` between ``<tool_call>`` and ``</tool_call>``.

    A block that names no known function, or has no object for arguments, is text.
    """

    marks = (BEGIN,)

    def _open(self, mark: str) -> None:
        self._begin_object()

    def _behind(self, char: str) -> None:
        """Read what follows the object: space, and the end tag, which may be missing or cut."""
        if not self._tag and char in SPACE:
            return
        self._to_end(char, END)

    def finish(self, cut: bool = False) -> list[Delta]:
        if self._step == self._behind:
            self._tag = ""  # a part of the end tag
        return super().finish(cut)
