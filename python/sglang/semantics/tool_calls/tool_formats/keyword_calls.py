"""Calls with keyword arguments, as Python writes them: what the parsers and the constraints of such
formats share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sglang.semantics.tool_calls.json_scan import SPACE
from sglang.semantics.tool_calls.tool_format import (
    Form,
    Tool,
    constant,
    schema,
    sequence,
    tag,
    to_json,
)
from sglang.semantics.tool_calls.tool_formats.literal import Literal
from sglang.semantics.tool_calls.tool_parser import CallParser

LONGEST = 256  # characters of a name
# What a schema may hold besides its properties where these are enforced one by one.
_PLAIN = {"type", "properties", "required", "additionalProperties", "title", "description",
          "$schema", "$defs", "definitions", "$comment"}  # fmt: skip


class KeywordParser(CallParser):
    """Reads ``name(key=value, ...)`` and ``name(**{...})``, from ``_begin_call`` to ``_behind``."""

    def _begin_call(self) -> None:
        self._name, self._step = "", self._in_name

    def _behind(self, char: str) -> None:
        """Read a character after a call's closing parenthesis."""
        raise NotImplementedError

    def _hold(self, char: str) -> None:
        self._held.append(char)

    def _in_name(self, char: str) -> None:
        if char == "(" and self._knows(self._name):
            self._hold(char)
            self._key, self._told = "", False
            self._step = self._before_key
            self._arguments_begin()
        elif (char.isalnum() or char in "_-.") and len(self._name) < LONGEST:
            self._hold(char)
            self._name += char
        elif char in SPACE and not self._name:
            self._hold(char)
        else:
            self._refuse(char)

    def _arguments_begin(self) -> None:
        """May set another step."""

    def _before_key(self, char: str) -> None:
        """Read a character after the opening parenthesis or a comma."""
        if char == ")":
            self._end(char)
        elif char == "*" and not self._told:
            self._hold(char)
            self._step = self._stars
        elif char in SPACE:
            self._hold_untold(char)
        elif char.isidentifier():
            self._key, self._step = "", self._in_key
            self._in_key(char)
        else:
            self._break(char)

    def _hold_untold(self, char: str) -> None:
        if not self._told:
            self._hold(char)

    def _stars(self, char: str) -> None:
        """Read a character after ``*``."""
        self._hold(char)
        if char == "{" and self._held[-2:] == ["*", "{"] and self._held[-3] == "*":
            self._tell(self._name, "")
            self._told = True
            self._value(char)
        elif char != "*" or self._held[-3] == "*":
            self._held.pop()
            self._refuse(char)

    def _in_key(self, char: str) -> None:
        if char == "=" and self._key.strip(SPACE).isidentifier():
            key = to_json(self._key.strip(SPACE))
            if self._told:
                self._argue(f", {key}: ")
            else:
                self._tell(self._name, f"{{{key}: ")
                self._told = True
            self._literal, self._step = Literal(), self._in_value
            self._closing = "}"
        elif (char.isalnum() or char in "_ ") and len(self._key) < LONGEST:
            self._key += char
            self._hold_untold(char)
        else:
            self._break(char)

    def _value(self, char: str) -> None:
        """The object after two stars."""
        self._literal, self._closing, self._step = Literal(), "", self._in_value
        self._in_value(char)

    def _run(self, text: str, at: int) -> int:
        if self._step != self._in_value:
            return super()._run(text, at)
        said, end = self._literal.run(text, at)
        self._argue(said)
        return end

    def _in_value(self, char: str) -> None:
        text, own = self._literal.take(char)
        self._argue(text)
        if self._literal.wrong:
            self._break(char)
        elif self._literal.done:
            self._step = self._behind_value
            if not own:
                self._behind_value(char)

    def _behind_value(self, char: str) -> None:
        if char == ")":
            self._end(char)
        elif char == "," and self._closing:
            self._step = self._before_key
        elif char not in SPACE:
            self._break(char)

    def _end(self, char: str) -> None:
        """The closing parenthesis."""
        if self._told:
            self._argue(self._closing)
        else:
            self._tell(self._name, "{}")
        self._close()
        self._step = self._behind

    def _break(self, char: str) -> None:
        """``char`` is not allowed here. The rest of a call that was emitted is lost."""
        if self._told:
            self._resume(char)
        else:
            self._refuse(char)


def arguments_form(tool: Tool) -> tuple[Form, str]:
    """Form of the text between a call's parentheses, and the text before it. The form is keyword
    arguments in the order of the schema, required ones first. Where the schema says more than its
    properties one by one, it is the object, and the text before it two stars."""
    given = tool.parameters
    properties = given.get("properties") or {}
    required = [name for name in given.get("required") or () if name in properties]
    shared = {name: given[name] for name in ("$defs", "definitions") if name in given}
    plain = (
        set(given) <= _PLAIN
        and len(required) == len(given.get("required") or ())
        and all(name.isidentifier() and name.isascii() for name in properties)
        and _own_references(properties)
    )
    if not plain:
        return schema(given), "**"
    forms = {name: schema(_with(shared, value)) for name, value in properties.items()}
    optional = [name for name in properties if name not in required]
    if not required:
        return _one_of_the_first(optional, forms), ""
    parts: list[Form] = []
    for name in dict.fromkeys(required):
        parts += [constant(f"{', ' if parts else ''}{name}="), forms[name]]
    return sequence(*parts, *(_maybe(name, forms) for name in optional)), ""


def _own_references(properties: Mapping[str, Any]) -> bool:
    """Whether they refer to nothing but definitions."""
    text = json.dumps(properties)
    inside = text.count('"$ref": "#/$defs/') + text.count('"$ref": "#/definitions/')
    return text.count('"$ref"') == inside and '"$dynamicRef"' not in text


def _with(shared: Mapping[str, Any], value: Any) -> Any:
    return {**shared, **value} if shared and isinstance(value, dict) else value


def _maybe(name: str, forms: Mapping[str, Form]) -> Form:
    return _optional([tag(f", {name}=", forms[name], "")])


def _optional(tags: Sequence[Form]) -> Form:
    return {"type": "tags_with_separator", "tags": list(tags), "separator": "",
            "at_least_one": False, "stop_after_first": True}  # fmt: skip


def _one_of_the_first(names: Sequence[str], forms: Mapping[str, Form]) -> Form:
    """All are optional: any of them may be the first."""
    if not names:
        return constant("")
    tags = []
    for i, name in enumerate(names):
        rest = [_maybe(later, forms) for later in names[i + 1 :]]
        tags.append(tag(f"{name}=", sequence(forms[name], *rest), ""))
    return _optional(tags)
