"""Tools of a chat: the functions a model may call, and the calls in a conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang.ir.constraint import Constraint
from sglang.semantics.tool_calls.tool_format import Calls, Form, Tool, ToolFormat, either, schema
from sglang.semantics.tool_calls.tool_formats import Hermes
from sglang.semantics.tool_calls.tool_parser import ToolParser
from sglang.srt.requests.completion.constraint_settings import json_text
from sglang.srt.requests.replies.schema_check import first_fault
from sglang.srt.requests.request_error import RequestError

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MODES = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolUse:
    """The tools of one request.

    Attributes:
        tools: tools that may be called; only the named one if ``tool_choice`` names one.
        shown: tools that the prompt describes, as the user wrote them.
        required: the reply must be a call. many: the reply may have several calls.
        legacy: the request has ``functions``, so a call is written as ``function_call``.
    """

    tools: tuple[Tool, ...]
    shown: tuple[Tool, ...]
    required: bool
    many: bool
    format: ToolFormat
    legacy: bool = False

    def form(self, own: Constraint | None) -> Form | None:
        """Return the form that constrains the reply, None for free text. ``own``: the request's own
        constraint, a JSON schema that the reply may match instead of a call, unless a call is
        required. Raises RequestError."""
        if own is not None and own.kind != "json_schema":
            raise RequestError(
                f"{own.kind} cannot be given with tools; remove it, or set tool_choice: none.",
                "tools",
            )
        if self.required:
            return self.format.calls(self.tools, self.many)
        if own is not None:
            calls = self.format.calls(self.tools, self.many)
            return either(calls, schema(json.loads(own.text)))
        strict = any(tool.strict for tool in self.tools)
        return self.format.tagged(self.tools) if strict else None

    def parser(self) -> ToolParser:
        return self.format.parser(self.tools)

    def named(self, error: RequestError, form: Constraint | None) -> RequestError:
        """Return an error about the structural tag ``form`` in terms of the request: with the index
        of the tool whose parameters are at fault. Other errors keep their message."""
        message = error.message
        if found := re.search(r"(?:structural_tag|json_schema) at (/[^\s:]*)", message):
            message = self._placed(message, found, form)
        ours = message != error.message or error.param == "structural_tag"
        return error.reworded(message, "tools" if ours else error.param)

    def _placed(self, message: str, found: re.Match[str], form: Constraint | None) -> str:
        """Return the message with its pointer into the structural tag (``found``) replaced by the
        path to a tool's parameters."""
        node: Any = json.loads(form.text) if form is not None else {}
        steps, tool = found[1].split("/")[1:], None
        for i, step in enumerate(steps):
            if tool is None and steps[i - 1] == "tags" and len(node) == len(self.tools):
                one = self.tools[int(step)]
                tool = one if one.name in node[int(step)]["begin"] else None
            if tool is not None and step == "json_schema":
                rest = "".join(f"/{name}" for name in steps[i + 1 :])
                where = f"tools[{tool.place}].function.parameters{rest}"
                return message[: found.start(1)] + where + message[found.end() :]
            try:
                node = node[int(step)] if isinstance(node, list) else node[step]
            except (LookupError, TypeError, ValueError):
                break
        return message


def verified(constraint: Constraint) -> Constraint:
    """Return the constraint, which was made of tools. Raises RequestError if it is too large."""
    try:
        constraint.verify()
    except ValueError as error:
        raise RequestError(f"tools, written as {error}", "tools") from error
    return constraint


def read_tools(
    tools: Any, choice: Any, parallel: bool | None, form: ToolFormat | None = None
) -> ToolUse | None:
    """Return the tools of a body, with calls in the syntax ``form``. Return None if no call may be
    made. Raises RequestError."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError("tool_choice is given without tools; give tools.", "tool_choice")
        return None
    if not isinstance(tools, list):
        raise RequestError("tools must be a list of functions.", "tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools has {len(tools)} entries; at most {MAX_TOOLS}.", "tools")
    found = tuple(_tool(i, tool) for i, tool in enumerate(tools))
    seen: set[str] = set()
    for i, tool in enumerate(found):
        if tool.name in seen:
            raise RequestError(
                f"tools[{i}] is the second one named {tool.name!r}; rename it.", "tools"
            )
        seen.add(tool.name)
    many, form = parallel is None or parallel, form or Hermes()
    if isinstance(choice, dict):
        mode, names = _chosen(choice)
        allowed = tuple(_named(name, found) for name in dict.fromkeys(names))
        single = mode == "function"
        return ToolUse(allowed, found, single or mode == "required", many and not single, form)
    if choice is not None and choice not in _MODES:
        raise RequestError(
            f"tool_choice is {choice!r:.60}; use {', '.join(_MODES)}, or name a function: "
            '{"type": "function", "function": {"name": ...}}.',
            "tool_choice",
        )
    if choice == "none":
        return None
    return ToolUse(found, found, choice == "required", many, form)


def read_functions(functions: Any, call: Any, form: ToolFormat | None = None) -> ToolUse | None:
    """Return the tools of the legacy ``functions`` and ``function_call``, None if no call may be
    made. Raises RequestError."""
    tools = functions
    if isinstance(functions, list):
        tools = [{"type": "function", "function": function} for function in functions]
    choice = call
    if isinstance(call, dict):
        choice = {"type": "function", "function": call}
    try:
        use = read_tools(tools, choice, False, form)
    except RequestError as error:
        message = error.message.replace("tool_choice", "function_call").replace(".function.", ".")
        param = "functions" if error.param == "tools" else "function_call"
        raise RequestError(re.sub(r"\btools\b", "functions", message), param) from error
    return None if use is None else replace(use, legacy=True)


def _chosen(choice: dict[str, Any]) -> tuple[str, list[str]]:
    """Return mode and names of a ``tool_choice``: "function" and the one name, or the mode of
    ``allowed_tools`` and its names. Raises RequestError."""
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        mode = inner.get("mode") if isinstance(inner, dict) else None
        tools = inner.get("tools") if isinstance(inner, dict) else None
        if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
            raise RequestError(
                'tool_choice must be {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or '
                '"required", "tools": [{"type": "function", "function": {"name": ...}}]}}.',
                "tool_choice",
            )
        return mode, [_name_of(tool) for tool in tools]
    return "function", [_name_of(choice)]


def _name_of(choice: Any) -> str:
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if (
        not isinstance(choice, dict)
        or choice.get("type") != "function"
        or not isinstance(name, str)
    ):
        raise RequestError(
            'tool_choice must be {"type": "function", "function": {"name": ...}}, or a list of '
            'such as {"type": "allowed_tools", ...}.',
            "tool_choice",
        )
    return name


def _named(name: str, tools: Sequence[Tool]) -> Tool:
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
    messages: list[dict[str, Any]],
    template: str,
    use: ToolUse | None,
    form: ToolFormat | None = None,
    cover: Callable[[Any], Any] = lambda value: value,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the messages, and further variables, for the chat template.

    Calls of earlier turns, their results and the tools are written into the messages as text if the
    template cannot write them itself. Raises RequestError.

    Args:
        form: syntax of calls if ``use`` is None.
        cover: escapes control tokens in texts of the request; the messages are escaped already.
    """
    form = use.format if use is not None else form or Hermes()
    written = []
    for i, message in enumerate(messages):
        if message["role"] == "tool" and "tool_calls" not in template:
            written.append(form.result(message))
        elif message["role"] != "assistant" or not message.get("tool_calls"):
            written.append(message)
        else:
            earlier = _earlier(f"messages[{i}].tool_calls", message["tool_calls"])
            calls = [(cover(name), cover(arguments)) for name, arguments in earlier]
            written.append(_with_calls(message, calls, form, "tool_calls" in template))
    if use is None:
        return written, {}
    shown = [replace(tool, definition=cover(tool.definition)) for tool in use.shown]
    if re.search(r"\btools\b", template):
        return written, {"tools": [dict(tool.definition) for tool in shown]}
    text = form.introduction(shown)
    if written and written[0]["role"] == "system":
        text = "\n\n".join(filter(None, [written[0]["content"], text]))
        return [{**written[0], "content": text}, *written[1:]], {}
    return [{"role": "system", "content": text}, *written], {}


def _with_calls(
    message: dict[str, Any], calls: Calls, form: ToolFormat, known: bool
) -> dict[str, Any]:
    """Return a message with its calls. ``known``: the template writes ``tool_calls`` itself;
    otherwise the calls become a part of the text."""
    if not known:
        text = "\n".join(filter(None, [message["content"], form.written(calls)]))
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        return {**rest, "content": text}
    entries = [
        {**entry, "function": {**entry["function"], "name": name, "arguments": arguments}}
        for entry, (name, arguments) in zip(message["tool_calls"], calls)
    ]
    return {**message, "tool_calls": entries}


def _earlier(where: str, calls: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return names and arguments of the calls in a message. Raises RequestError."""
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
