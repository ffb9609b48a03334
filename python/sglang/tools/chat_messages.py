"""Messages: conversion of turns between a state and the form of OpenAI's API."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sglang.ir.chat_template import Message
from sglang.ir.nodes import Chain, ConstantText, Image, Node, RoleBegin, RoleEnd
from sglang.ir.prompt_media import Media, medium
from sglang.run.interpreter import Interpreter, Steps
from sglang.run.live_nodes import LiveSteps
from sglang.semantics.tool_calls.tool_formats import format_named

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant",
         "tool": "tool"}  # fmt: skip
MAX_MESSAGES = 10_000
URL = re.compile(r"(data:|https?://)", re.IGNORECASE)
UNTRACED = (
    "messages with calls of tools are written in the model's own format, which only a run knows; "
    "run the program itself"
)


def shown(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a state's turns in the form of OpenAI's API."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _parts(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, Media):
            kind = f"{part.kind}_url"
            parts.append({"type": kind, kind: {"url": part.address}})
        else:
            parts.append({"type": "text", "text": part})
    return parts


def begun(
    state: Any, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Append the turns of ``run(messages=...)`` to a program's state, unless the program's
    ``function`` has a parameter ``messages``. Return the arguments of the function."""
    if "messages" not in arguments:
        return arguments
    parameters = inspect.signature(function).parameters
    variadic = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "messages" in parameters or variadic:
        return arguments
    state.messages(arguments["messages"])
    return {name: value for name, value in arguments.items() if name != "messages"}


def turns_of(messages: Any) -> Node:
    """Return a node that appends ``messages``, finished turns. Raise TypeError or ValueError, whose
    text names the message, for an invalid one."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(
            f'messages is {messages!r:.60}; give a list of {{"role": ..., "content": ...}}'
        )
    if len(messages) > MAX_MESSAGES:
        raise ValueError(f"messages has {len(messages)} entries; at most {MAX_MESSAGES}.")
    return Chain(tuple(node for i, one in enumerate(messages) for node in _turn(i, one).flat()))


def _turn(place: int, message: Any) -> Node:
    where = f"messages[{place}]"
    if not isinstance(message, Mapping):
        raise TypeError(f'{where} is {message!r:.60}; give {{"role": ..., "content": ...}}')
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise ValueError(
            f"{where}.role is {message.get('role')!r:.60}; use one of {', '.join(ROLES)}"
        )
    inside = _content(where, message.get("content"))
    calls = _calls(where, message.get("tool_calls") or ())
    if calls and role != "assistant":
        raise ValueError(
            f"{where} is of role {role!r} and has tool_calls; only the assistant calls"
        )
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise ValueError(f"{where}.tool_call_id is missing; give the id of the call it answers")
    if not calls and role != "tool":
        return Chain((RoleBegin(role), *inside, RoleEnd(role)))
    fields = {name: message[name] for name in ("tool_call_id", "name") if name in message}
    return LiveSteps(partial(_steps, role, inside, calls, fields), UNTRACED)


def _steps(
    role: str,
    inside: Sequence[Node],
    calls: Sequence[dict[str, Any]],
    fields: Mapping[str, Any],
    interpreter: Interpreter,
    model_type: str,
) -> Steps:
    """Append a turn with tool calls, or a turn with the result of a call."""
    stream = interpreter.stream
    for node in (RoleBegin(role), *inside):
        yield from interpreter.visit(node) or ()
    stream.turn_fields = dict(fields)
    if calls:
        content = stream.content(stream.role_start)
        stream.turn_fields = {"content": content, "tool_calls": list(calls)}
        named = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
        stream.text += format_named(interpreter.backend.tool_format).written(named)
    yield from interpreter.visit(RoleEnd(role)) or ()


def _content(where: str, content: Any) -> list[Node]:
    if content is None or isinstance(content, str):
        return [ConstantText(content)] if content else []
    if not isinstance(content, Sequence):
        raise TypeError(f"{where}.content is {content!r:.60}; give a text, or a list of parts")
    return [_part(f"{where}.content[{i}]", part) for i, part in enumerate(content)]


def _part(where: str, part: Any) -> Node:
    if isinstance(part, str):
        return ConstantText(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return ConstantText(part["text"])
    if kind in ("image_url", "video_url"):
        given = part.get(kind)
        url = given.get("url") if isinstance(given, Mapping) else given
        if isinstance(url, str) and not URL.match(url):  # messages may be untrusted input
            raise ValueError(
                f"{where}.{kind} is {url!r:.60}; give a data: or an http(s) URL. Messages open no "
                "file: use sgl.image(path) in the program"
            )
        what = kind.removesuffix("_url")
        frames = 8 if what == "video" else 0
        return Image(medium(what, url, frames), what, frames)
    raise ValueError(f"{where} is {part!r:.60}; give a text, an image_url or a video_url")


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    """Return the calls of a message in OpenAI's form. Raise TypeError or ValueError."""
    if not isinstance(calls, Sequence):
        raise TypeError(f"{where}.tool_calls is {calls!r:.60}; give a list")
    found = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            raise ValueError(
                f"{where}.tool_calls[{i}] is {call!r:.60}; give "
                '{"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}'
            )
        given = function.get("arguments") or "{}"
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        try:
            fits = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            fits = False
        if not fits:
            raise ValueError(
                f"{where}.tool_calls[{i}].function.arguments is {text!r:.60}; give a JSON object"
            )
        found.append({"id": str(call.get("id", f"call_{i}")), "type": "function",
                      "function": {"name": name, "arguments": text}})  # fmt: skip
    return found
