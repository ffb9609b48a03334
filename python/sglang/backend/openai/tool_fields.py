"""Tools in the fields of OpenAI's APIs: definitions, choices, turns with calls, replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang.backend.base import PromptTools
from sglang.backend.openai.strict_schema import is_strict

MOST_CALLS = 1024  # calls of one streamed message


def chat_tools(tools: PromptTools | None, official: bool) -> dict[str, Any]:
    """Fields of /chat/completions; {} without tools. ``official``: the service holds its model to
    schemas that are strict already."""
    if tools is None:
        return {}
    functions = [
        {**one, **({"strict": True} if official and _is_strict(one) else {})}
        for one in tools.definitions
    ]
    listed = [{"type": "function", "function": function} for function in functions]
    return {"tools": listed, **_choice(tools.choice, "function")}


def responses_tools(tools: PromptTools | None) -> dict[str, Any]:
    """Fields of /responses; {} without tools."""
    if tools is None:
        return {}
    listed = [{"type": "function", **one, "strict": _is_strict(one)} for one in tools.definitions]
    return {"tools": listed, **_choice(tools.choice, "")}


def _is_strict(definition: Mapping[str, Any]) -> bool:
    """Whether the service takes these parameters as a strict schema, without a change."""
    parameters = definition["parameters"]
    named = parameters.get("properties", {})
    closed = parameters.get("additionalProperties") is False
    return closed and set(parameters.get("required", ())) == set(named) and is_strict(parameters)


def _choice(choice: str, inner: str) -> dict[str, Any]:
    if choice == "auto":
        return {}
    if choice in ("none", "required"):
        return {"tool_choice": choice}
    named = {"name": choice}
    return {"tool_choice": {"type": "function", **({inner: named} if inner else named)}}


def chat_turn(turn: Mapping[str, Any], content: Any) -> dict[str, Any]:
    """A turn of /chat/completions."""
    message = {"role": turn["role"], "content": content}
    if turn.get("tool_calls"):
        return {**message, "content": content or None, "tool_calls": turn["tool_calls"]}
    if turn["role"] == "tool":
        message["tool_call_id"] = turn.get("tool_call_id", "")
    return message


def responses_items(turn: Mapping[str, Any], content: Any) -> list[dict[str, Any]]:
    """A turn as items of /responses: a message, calls, or the result of a call."""
    if turn["role"] == "tool":
        told = {"call_id": turn.get("tool_call_id", ""), "output": content}
        return [{"type": "function_call_output", **told}]
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]}
        for call in turn.get("tool_calls") or ()
    ]
    return [*([{"role": turn["role"], "content": content}] if content or not calls else []), *calls]


def chat_calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The calls of a message of /chat/completions, as meta_info has them. Raise KeyError and
    TypeError for what is none."""
    return [_call(call["id"], call["function"]) for call in calls]


def responses_calls(items: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The calls among the items of a reply of /responses."""
    return [_call(item["call_id"], item) for item in items if item.get("type") == "function_call"]


def _call(identity: Any, function: Mapping[str, Any]) -> dict[str, str]:
    name, arguments = function["name"], function.get("arguments") or "{}"
    if not all(isinstance(value, str) for value in (identity, name, arguments)):
        raise TypeError(f"a call is {function!r:.100}")
    return {"id": identity, "name": name, "arguments": arguments}


def grown_calls(whole: list[dict[str, Any]], pieces: Sequence[Mapping[str, Any]]) -> None:
    """Add the ``pieces`` of calls in a chunk of a stream: each names the index of its call. Raise
    IndexError for an index beyond ``MOST_CALLS``."""
    for piece in pieces:
        index = piece.get("index", len(whole))
        if not 0 <= index < MOST_CALLS:
            raise IndexError(f"a call has index {index}; it is below {MOST_CALLS}")
        while len(whole) <= index:
            whole.append({"id": "", "function": {"name": "", "arguments": ""}})
        call, function = whole[index], piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""
