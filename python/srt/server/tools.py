"""Tools of a chat: the functions a model may call, and the calls in a conversation."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from srt.core.constraint import Constraint
from srt.program.constraint import json_text
from srt.program.deltas import Begin, Delta, Thought, Words, joined
from srt.program.request import RequestError
from srt.program.schema_check import first_fault
from srt.program.tool_parser import ToolParser
from srt.program.tools import Hermes, Tool, ToolFormat

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_POINTER = re.compile(
    r"(?:/format(?:/elements/0)?/tags|/structures)/(\d+)/(?:content/json_schema|schema)"
)
_MODES = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolUse:
    """The tools of one request.

    Attributes:
        tools: those that may be called; only the named one where one is.
        shown: those that the model is told of, as the user wrote them.
        required: the reply is a call. many: it may be several.
    """

    tools: tuple[Tool, ...]
    shown: tuple[Tool, ...]
    required: bool
    many: bool
    format: ToolFormat

    def constraint(self, own: Constraint | None) -> Constraint | None:
        """What the reply must be; ``own`` is what the request names beside the tools: JSON that
        may come in place of a call. Raises RequestError where both cannot be."""
        if own is not None and own.kind != "json_schema":
            raise RequestError(
                f"{own.kind} cannot be given with tools; remove it, or set tool_choice: none.",
                "tools",
            )
        found = self._constraint(own)
        if found is not None:
            try:
                found.verify()
            except ValueError as error:
                raise RequestError(f"tools, written as {error}", "tools") from error
        return found

    def _constraint(self, own: Constraint | None) -> Constraint | None:
        if self.required:
            return self.format.calls(self.tools, self.many)
        if own is not None:
            return self.format.calls(self.tools, self.many, json.loads(own.text))
        strict = any(tool.strict for tool in self.tools)
        return self.format.tagged(self.tools) if strict else None

    def parser(self) -> ToolParser:
        return self.format.parser(self.tools)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Lets what is wrong with a tool's parameters be told by the tool's place: the request
        knows of no structural tag."""

        def name(found: re.Match[str]) -> str:
            return f"tools[{self.tools[int(found[1])].place}].function.parameters"

        try:
            yield
        except RequestError as error:
            message = _POINTER.sub(name, error.message)
            if message == error.message and error.param != "structural_tag":
                raise
            raise RequestError(message, "tools", error.code) from error


def read_tools(tools: Any, choice: Any, parallel: bool | None) -> ToolUse | None:
    """The tools of a body; None where no call may be made. Raises RequestError."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError("tool_choice is given without tools; give tools.", "tool_choice")
        return None
    if not isinstance(tools, list):
        raise RequestError("tools must be a list of functions.", "tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools has {len(tools)} entries; at most {MAX_TOOLS}.", "tools")
    found = [_tool(i, tool) for i, tool in enumerate(tools)]
    names = [tool.name for tool in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise RequestError(f"tools[{i}] is the second one named {name!r}; rename it.", "tools")
    many = parallel is None or parallel
    if isinstance(choice, dict):
        chosen = _chosen(choice, found)
        return ToolUse((chosen,), tuple(found), True, False, Hermes())
    if choice is not None and choice not in _MODES:
        raise RequestError(
            f"tool_choice is {choice!r:.60}; use {', '.join(_MODES)}, or name a function: "
            '{"type": "function", "function": {"name": ...}}.',
            "tool_choice",
        )
    if choice == "none":
        return None
    return ToolUse(tuple(found), tuple(found), choice == "required", many, Hermes())


def _chosen(choice: dict[str, Any], tools: Sequence[Tool]) -> Tool:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise RequestError(
            'tool_choice must be {"type": "function", "function": {"name": ...}}.', "tool_choice"
        )
    for tool in tools:
        if tool.name == name:
            return tool
    names = ", ".join(tool.name for tool in tools)
    raise RequestError(
        f"tool_choice names {name!r:.80}; the tools are {names:.200}.", "tool_choice"
    )


def _tool(place: int, given: Any) -> Tool:
    def refuse(reason: str) -> RequestError:
        return RequestError(f"tools[{place}]{reason}.", "tools")

    if not isinstance(given, dict) or given.get("type") != "function":
        kind = given.get("type") if isinstance(given, dict) else given
        raise refuse(f".type is {kind!r:.60}; only function is available")
    function = given.get("function")
    if not isinstance(function, dict):
        raise refuse(".function is missing; give an object")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refuse(
            f".function.name is {name!r:.80}; use 1 to 64 letters, digits, underscores and hyphens"
        )
    if not isinstance(description, str | None):
        raise refuse(f".function.description is {description!r:.60}; give a text")
    if not isinstance(function.get("strict"), bool | None):
        raise refuse(f".function.strict is {function['strict']!r:.60}; give true or false")
    parameters = function.get("parameters")
    parameters = {"type": "object", "properties": {}} if parameters is None else parameters
    try:
        json_text("parameters", parameters, (dict,), "a JSON schema")
    except ValueError as error:
        raise refuse(f".function.{str(error).rstrip('.')}") from error
    if fault := first_fault(parameters):
        raise refuse(f".function.parameters: {fault}")
    if parameters.get("type", "object") != "object":
        raise refuse(
            f".function.parameters: /type is {parameters['type']!r:.60}; arguments are an object"
        )
    parameters = {"type": "object", **parameters}
    return Tool(place, name, parameters, bool(function.get("strict")), given)


def with_tools(
    messages: list[dict[str, Any]], template: str, use: ToolUse | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The conversation, and further variables, for the chat template.

    What the template does not write itself is put into the messages as text: the calls of earlier
    turns, and the tools. Raises RequestError.
    """
    form: ToolFormat = Hermes() if use is None else use.format
    told = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or not message.get("tool_calls"):
            told.append(message)
            continue
        calls = _earlier(f"messages[{i}].tool_calls", message["tool_calls"])
        if "tool_calls" in template:
            entries = [
                {**entry, "function": {**entry["function"], "name": name, "arguments": arguments}}
                for entry, (name, arguments) in zip(message["tool_calls"], calls)
            ]
            told.append({**message, "tool_calls": entries})
        else:
            text = "\n".join(filter(None, [message["content"], form.written(calls)]))
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            told.append({**rest, "content": text})
    if use is None:
        return told, {}
    if re.search(r"\btools\b", template):
        return told, {"tools": [dict(tool.definition) for tool in use.shown]}
    text = form.introduction(use.shown)
    if told and told[0]["role"] == "system":
        text = "\n\n".join(filter(None, [told[0]["content"], text]))
        return [{**told[0], "content": text}, *told[1:]], {}
    return [{"role": "system", "content": text}, *told], {}


def _earlier(where: str, calls: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Names and arguments of the calls in a message."""
    if not isinstance(calls, list):
        raise RequestError(f"{where} must be a list.", "messages")
    found = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            raise RequestError(f"{where}[{i}].function.name is missing; give a text.", "messages")
        arguments = function.get("arguments") or "{}"
        try:
            text = json_text("arguments", arguments, (dict,), "an object, or its text")
        except ValueError as error:
            raise RequestError(f"{where}[{i}].function.{error}", "messages") from error
        found.append((name, json.loads(text)))
    return found


def message_of(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The assistant's message of a whole reply."""
    words, calls = joined(deltas)
    message: dict[str, Any] = {"role": "assistant", "content": words, "refusal": None}
    if thoughts := "".join(delta.text for delta in deltas if isinstance(delta, Thought)):
        message["reasoning_content"] = thoughts
    if calls:
        message["content"] = words or None
        message["tool_calls"] = [
            {"id": _new_id(), "type": "function", "function": {"name": name, "arguments": text}}
            for name, text in calls
        ]
    return message


def delta_of(delta: Delta) -> dict[str, Any]:
    """One delta as a stream shows it."""
    if isinstance(delta, Words):
        return {"content": delta.text}
    if isinstance(delta, Thought):
        return {"reasoning_content": delta.text}
    call: dict[str, Any] = {"index": delta.call}
    if isinstance(delta, Begin):
        call |= {"id": _new_id(), "type": "function",
                 "function": {"name": delta.name, "arguments": ""}}  # fmt: skip
    else:
        call["function"] = {"arguments": delta.text}
    return {"tool_calls": [call]}


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
