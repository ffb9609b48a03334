"""Tiny: how sglang-tiny, the embedded model, was taught to call.

    <tool>calc(17*25)</tool>        and the user says        <result>425</result>

The function it knows takes one text, which stands there as it is; others have keyword arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang.semantics.tool_calls.deltas import Delta
from sglang.semantics.tool_calls.json_scan import SPACE
from sglang.semantics.tool_calls.tool_format import Calls, Form, Tool, repeated, tag, to_json
from sglang.semantics.tool_calls.tool_formats.keyword_calls import KeywordParser, arguments_form
from sglang.semantics.tool_calls.tool_formats.pythonic import call_text
from sglang.semantics.tool_calls.tool_parser import ToolParser

BEGIN, END = "<tool>", "</tool>"
_PLAIN = {"type", "title", "description", "default", "examples"}


class Tiny:
    """See the module."""

    name: str = "tiny"
    marks: tuple[str, ...] = (BEGIN, END)

    def calls(self, tools: Sequence[Tool], many: bool) -> Form:
        return repeated([_tag(tool) for tool in tools], "", many)

    def tagged(self, tools: Sequence[Tool]) -> Form:
        tags = [_tag(tool) for tool in tools]
        return {"type": "triggered_tags", "triggers": [BEGIN], "tags": tags}

    def parser(self, tools: Sequence[Tool], any_name: bool = False) -> ToolParser:
        return TinyParser({tool.name: one_text(tool) for tool in tools}, any_name)

    def written(self, calls: Calls) -> str:
        return "".join(f"{BEGIN}{_call(name, given)}{END}" for name, given in calls)

    def result(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {"role": "user", "content": f"<result>{message['content']}</result>"}

    def introduction(self, tools: Sequence[Tool]) -> str:
        return " ".join(
            f"You can call {BEGIN}{tool.name}({', '.join(_keys(tool))}){END}." for tool in tools
        )


def one_text(tool: Tool) -> str:
    """Name of the only parameter, where that is a text of any kind; else ""."""
    keys = _keys(tool)
    value = tool.parameters["properties"][keys[0]] if len(keys) == 1 else None
    plain = isinstance(value, Mapping) and set(value) <= _PLAIN and value.get("type") == "string"
    return keys[0] if plain else ""


def _keys(tool: Tool) -> list[str]:
    return list(tool.parameters.get("properties") or ())


def _tag(tool: Tool) -> Form:
    if one_text(tool):
        return tag(f"{BEGIN}{tool.name}(", {"type": "any_text"}, f"){END}")
    arguments, stars = arguments_form(tool)
    return tag(f"{BEGIN}{tool.name}({stars}", arguments, f"){END}")


def _call(name: str, given: Mapping[str, Any]) -> str:
    (value,) = given.values() if len(given) == 1 else (None,)
    return f"{name}({value})" if isinstance(value, str) else call_text(name, given)


class TinyParser(KeywordParser):
    """Calls between ``<tool>`` and ``</tool>``; ``texts`` has the key of each function that takes
    one text, "" for the others."""

    marks = (BEGIN,)

    def __init__(self, texts: Mapping[str, str], any_name: bool = False) -> None:
        super().__init__(texts.keys(), any_name)
        self._texts = texts

    def _open(self, mark: str) -> None:
        self._begin_call()

    def _arguments_begin(self) -> None:
        if key := self._texts.get(self._name):
            self._tell(self._name, f'{{{to_json(key)}: "')
            self._told, self._closing, self._step = True, '"}', self._in_text

    def _run(self, text: str, at: int) -> int:
        if self._step != self._in_text or self._tag:
            return super()._run(text, at)
        end = text.find(")", at)
        end = len(text) if end < 0 else end
        self._argue(to_json(text[at:end])[1:-1])
        return end

    def _in_text(self, char: str) -> None:
        """Up to the end tag, with the parenthesis before it."""
        end = f"){END}"
        self._tag += char
        while self._tag and not end.startswith(self._tag):
            self._argue(to_json(self._tag[0])[1:-1])
            self._tag = self._tag[1:]
        if self._tag == end:
            self._tag = ""
            self._argue(self._closing)
            self._close()
            self._resume()

    def _behind(self, char: str) -> None:
        if not self._tag and char in SPACE:
            return
        self._to_end(char, END)

    def finish(self, cut: bool = False) -> list[Delta]:
        if self._step == self._in_text:
            self._argue(to_json(self._tag)[1:-1])
            self._tag = ""
        if self._step == self._behind:
            self._tag = ""  # a part of the end tag
        return super().finish(cut)
