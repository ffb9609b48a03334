"""Llama3: how the Llama 3 models write calls, JSON at the start of a line or behind a tag.

{"name": "add", "parameters": {"a": 1, "b": 2}}; {"name": "now", "parameters": {}}
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang.semantics.tool_calls.json_scan import SPACE
from sglang.semantics.tool_calls.tool_format import (
    Calls,
    Form,
    Plain,
    Tool,
    arguments_of,
    either,
    listed,
    plain_lines,
    repeated,
    schema,
    tag,
    to_json,
)
from sglang.semantics.tool_calls.tool_parser import ObjectParser, ToolParser

TAG = "<|python_tag|>"


class Llama3(Plain):
    """See the module."""

    name: str = "llama3"
    marks: tuple[str, ...] = (TAG,)

    def calls(self, tools: Sequence[Tool], many: bool) -> Form:
        return repeated([_tag(tool, True) for tool in tools], "; ", many)

    def tagged(self, tools: Sequence[Tool]) -> Form:
        return either(repeated([_tag(tool, False) for tool in tools], "; ", True), plain_lines("{"))

    def parser(self, tools: Sequence[Tool], any_name: bool = False) -> ToolParser:
        return Llama3Parser({tool.name for tool in tools}, any_name)

    def written(self, calls: Calls) -> str:
        return "; ".join(
            to_json({"name": name, "parameters": arguments}) for name, arguments in calls
        )

    def introduction(self, tools: Sequence[Tool]) -> str:
        return (
            f"You may call these functions:\n{listed(tools)}\n"
            "To call one, answer with nothing but its name and arguments as JSON:\n"
            '{"name": NAME, "parameters": ARGUMENTS}'
        )


def _tag(tool: Tool, always: bool) -> Form:
    begin = f'{{"name": "{tool.name}", "parameters": '
    return tag(begin, schema(arguments_of(tool, always)), "}")


class Llama3Parser(ObjectParser):
    """JSON objects with ``name`` and ``parameters`` (or ``arguments``), several after another with
    semicolons, commas or space between them.

    An object with any other key is text, so that an answer in JSON is not held back.
    """

    marks = (TAG,)
    line_marks = "{"
    arguments = ("parameters", "arguments")
    keys = ("name", "parameters", "arguments", "type", "id")

    def _open(self, mark: str) -> None:
        self._begin_object("{" if mark == "{" else "")

    def _behind(self, char: str) -> None:
        """Read a character after an object: the next object, or text."""
        if char in SPACE:
            (self._held or self._space).append(char)
        elif char in ";," and not self._held:
            self._space.append(char)
            self._held, self._space = self._space, []  # text, unless an object follows
        elif char == "{":
            self._held, self._space = [*(self._held or self._space), char], []
            self._begin_object(char)
        else:
            self._space, self._held = self._held or self._space, []
            self._resume(char)
