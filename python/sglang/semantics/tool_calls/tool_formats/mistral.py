"""Mistral: how the Mistral models write calls, the older ones as a list, the newer ones by name.

[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]
[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang.semantics.tool_calls.json_scan import SPACE, Value
from sglang.semantics.tool_calls.tool_format import (
    Calls,
    Form,
    Plain,
    Tool,
    arguments_of,
    constant,
    listed,
    repeated,
    schema,
    sequence,
    tag,
    to_json,
)
from sglang.semantics.tool_calls.tool_parser import ObjectParser, ToolParser

BY_NAME = "mistral by name"
BEGIN, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
LONGEST = 128  # characters of a name, with what may stand between it and the arguments


class Mistral(Plain):
    """See the module. ``by_name``: written the newer way. Both are read."""

    def __init__(self, by_name: bool = False) -> None:
        self.by_name = by_name
        self.name: str = BY_NAME if by_name else "mistral"
        self.marks: tuple[str, ...] = (BEGIN, ARGS, ID)

    def calls(self, tools: Sequence[Tool], many: bool) -> Form:
        tags = [self._tag(tool, True) for tool in tools]
        if self.by_name:
            return repeated(tags, "", many)
        return sequence(constant(f"{BEGIN}["), repeated(tags, ", ", many), constant("]"))

    def tagged(self, tools: Sequence[Tool]) -> Form:
        tags = [self._tag(tool, False) for tool in tools]
        if self.by_name:
            return {"type": "triggered_tags", "triggers": [BEGIN], "tags": tags}
        calls = sequence(repeated(tags, ", ", True), constant("]"))
        tags = [tag(f"{BEGIN}[", calls, "")]
        return {"type": "triggered_tags", "triggers": [BEGIN], "tags": tags}

    def _tag(self, tool: Tool, always: bool) -> Form:
        arguments = schema(arguments_of(tool, always))
        if self.by_name:
            return tag(f"{BEGIN}{tool.name}{ARGS}", arguments, "")
        return tag(f'{{"name": "{tool.name}", "arguments": ', arguments, "}")

    def parser(self, tools: Sequence[Tool], any_name: bool = False) -> ToolParser:
        return MistralParser({tool.name for tool in tools}, any_name)

    def written(self, calls: Calls) -> str:
        if self.by_name:
            return "".join(f"{BEGIN}{name}{ARGS}{to_json(given)}" for name, given in calls)
        return BEGIN + to_json([{"name": name, "arguments": given} for name, given in calls])

    def introduction(self, tools: Sequence[Tool]) -> str:
        call = f"{BEGIN}NAME{ARGS}ARGUMENTS"
        if not self.by_name:
            call = f'{BEGIN}[{{"name": NAME, "arguments": ARGUMENTS}}]'
        return (
            f"You may call these functions:\n{listed(tools)}\n"
            f"To call one, answer with its name and arguments as JSON:\n{call}"
        )


class MistralParser(ObjectParser):
    """Parser of calls after ``[TOOL_CALLS]``: a list of JSON objects with ``name`` and
    ``arguments``, or a name, an optional ``[CALL_ID]``, ``[ARGS]`` and the object of the
    arguments."""

    marks = (BEGIN,)

    def _open(self, mark: str) -> None:
        self._step = self._head

    def _head(self, char: str) -> None:
        """A bracket, or the name."""
        if char == "[":
            self._held.append(char)
            self._step = self._item
        elif char in SPACE:
            self._held.append(char)
        else:
            self._name: list[str] = []
            self._step = self._named
            self._named(char)

    def _item(self, char: str) -> None:
        """Read a character before an object of the list."""
        if char in SPACE:
            self._held.append(char)
        elif char == "{":
            self._held.append(char)
            self._begin_object(char)
        else:
            self._refuse(char)

    def _behind(self, char: str) -> None:
        """Read a character after an object of the list."""
        if char in SPACE:
            self._space.append(char)
        elif char == ",":
            self._held, self._space = [*self._space, char], []
            self._step = self._item
        elif char == "]":
            self._space = []
            self._resume()
        else:
            self._resume(char)

    def _named(self, char: str) -> None:
        """The name, up to the object of its arguments."""
        if char == "{":
            name, mark, rest = "".join(self._name).partition(ARGS)
            name = name.partition(ID)[0].strip(SPACE)
            if mark and not rest.strip(SPACE) and self._knows(name):
                self._value = Value(char)
                self._tell(name, char)
                self._step = self._given
                return
            self._refuse(char)
        elif len(self._name) == LONGEST:
            self._refuse(char)
        else:
            self._name.append(char)
            self._held.append(char)
            if self._name[-1] == "]" and self._wrong():
                self._held.pop()
                self._refuse(char)

    def _wrong(self) -> bool:
        """Whether the brackets so far are none of this format."""
        text = "".join(self._name).replace(ARGS, "", 1).replace(ID, "", 1)
        return "]" in text

    def _run(self, text: str, at: int) -> int:
        if self._step != self._given:
            return super()._run(text, at)
        end = self._value.run(text, at)
        self._argue(text[at:end])
        return end

    def _given(self, char: str) -> None:
        self._value.take(char)
        self._argue(char)
        if self._value.done:
            self._close()
            self._resume()
