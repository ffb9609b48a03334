"""Pythonic: how Llama 3.2 and Llama 4 write calls, a list of them as Python has it.

[add(a=1, b=2), now()]
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sglang.semantics.tool_calls.json_scan import SPACE
from sglang.semantics.tool_calls.tool_format import (
    Calls,
    Form,
    Plain,
    Tool,
    constant,
    either,
    listed,
    plain_lines,
    repeated,
    sequence,
    tag,
)
from sglang.semantics.tool_calls.tool_formats.keyword_calls import KeywordParser, arguments_form
from sglang.semantics.tool_calls.tool_parser import ToolParser

START, END = "<|python_start|>", "<|python_end|>"


class Pythonic(Plain):
    """See the module. A call that is held to any schema is held to its own: what Python's keywords
    may be without one cannot be said."""

    name: str = "pythonic"
    marks: tuple[str, ...] = (START, END)

    def calls(self, tools: Sequence[Tool], many: bool) -> Form:
        tags = []
        for tool in tools:
            arguments, stars = arguments_form(tool)
            tags.append(tag(f"{tool.name}({stars}", arguments, ")"))
        return sequence(constant("["), repeated(tags, ", ", many), constant("]"))

    def tagged(self, tools: Sequence[Tool]) -> Form:
        return either(self.calls(tools, True), plain_lines("["))

    def parser(self, tools: Sequence[Tool], any_name: bool = False) -> ToolParser:
        return PythonicParser({tool.name for tool in tools}, any_name)

    def written(self, calls: Calls) -> str:
        return f"[{', '.join(call_text(name, given) for name, given in calls)}]"

    def introduction(self, tools: Sequence[Tool]) -> str:
        return (
            f"You may call these functions:\n{listed(tools)}\n"
            "To call some, answer with nothing but a list of calls:\n[NAME(ARGUMENT=VALUE, ...)]"
        )


def call_text(name: str, given: object) -> str:
    """Write one call: ``f(a=1)``, or ``f(**{"a-b": 1})`` where a key is no Python identifier."""
    assert isinstance(given, dict)
    if all(key.isidentifier() for key in given):
        return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in given.items())})"
    return f"{name}(**{_literal(given)})"


def _literal(value: object) -> str:
    """A value of JSON as Python writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(k)}: {_literal(v)}' for k, v in value.items())}}}"
    words = {True: "True", False: "False", None: "None"}
    if value is None or isinstance(value, bool):
        return words[value]
    return json.dumps(value, ensure_ascii=False)


class PythonicParser(KeywordParser):
    """A list of calls at the start of a line, or behind ``<|python_start|>``."""

    marks = (START,)
    line_marks = "["

    def _open(self, mark: str) -> None:
        self._step = self._bracket
        if mark == "[":
            self._begin_call()

    def _bracket(self, char: str) -> None:
        """Read a character after ``<|python_start|>``."""
        if char == "[":
            self._hold(char)
            self._begin_call()
        elif char in SPACE:
            self._hold(char)
        else:
            self._refuse(char)

    def _behind(self, char: str) -> None:
        if char in SPACE:
            self._space.append(char)
        elif char == ",":
            self._held, self._space = [*self._space, char], []
            self._begin_call()
        elif char == "]":
            self._space = []
            self._step = self._at_end
        else:
            self._resume(char)

    def _at_end(self, char: str) -> None:
        """Read what follows the list: ``<|python_end|>``, where there is one."""
        self._to_end(char, END)
