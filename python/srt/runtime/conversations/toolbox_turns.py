"""Toolbox turns: a chat in which the server runs the model's calls of the operator's tools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.conversations.chat_request import ChatRequest
from sglang.srt.runtime.toolbox.tool_processes import Toolbox, ToolResult

KIND = "toolbox"  # type of an entry of ``tools``
FIELD = "toolbox_messages"  # field of the assistant's message: the server's earlier calls
Message = dict[str, Any]


class ToolboxTurns:
    """The turns of one request.

    Attributes:
        body: the request of the next turn.
        messages: the calls that the server has run so far, and their results.
        failed: ids of the calls that failed.
    """

    def __init__(self, toolbox: Toolbox, body: ChatRequest, own: frozenset[str]) -> None:
        """``own``: names of the tools that the server runs."""
        self.body, self.messages = body, list[Message]()
        self.failed: frozenset[str] = frozenset()
        self._toolbox, self._own = toolbox, own
        self._left = toolbox.max_calls if body.max_calls is None else body.max_calls
        self._told = False

    def own(self, message: Message) -> list[Message]:
        """Return the calls of a reply that the server runs (``after``)."""
        calls: list[Message] = message.get("tool_calls") or []
        if self._left <= 0 and self._told:
            return []
        return [call for call in calls if call["function"]["name"] in self._own]

    async def after(self, message: Message) -> tuple[Message, list[Message], bool]:
        """Run the server's calls in a reply.

        Return the message for the client, the messages that come before it, and whether the model
        has another turn. If a reply also calls functions of the client, its calls are split: first
        the server's calls and their results, then a message with the client's calls.
        """
        calls: list[Message] = message.get("tool_calls") or []
        own = self.own(message)
        if not own:
            return message, [], False
        results = await self._results(own)
        added = [{**message, "tool_calls": own}, *results]
        self.messages += added
        if others := [call for call in calls if call not in own]:
            return {**message, "content": None, "tool_calls": others}, added, False
        self.body = msgspec.structs.replace(
            self.body,
            messages=[*self.body.messages, *added],
            tool_choice=_free(self.body.tool_choice),
            continue_final_message=None,
            add_generation_prompt=None,
        )
        return message, added, True

    async def _results(self, calls: list[Message]) -> list[Message]:
        """Run calls concurrently and return their results. Calls beyond the limit are not run;
        their result is an error text."""
        taken, self._left = calls[: self._left], max(self._left - len(calls), 0)
        self._told = len(taken) < len(calls)
        tasks = [
            asyncio.ensure_future(
                self._toolbox.call(call["function"]["name"], call["function"]["arguments"])
            )
            for call in taken
        ]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        limit = "Error: no more calls are run for this request; answer without them."
        results += [ToolResult(limit, True)] * (len(calls) - len(taken))
        answered = list(zip(calls, results))
        self.failed |= {call["id"] for call, result in answered if result.failed}
        return [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": result.text,
            }
            for call, result in answered
        ]


def toolbox_turns(toolbox: Toolbox | None, body: ChatRequest) -> ToolboxTurns | None:
    """Return the turns of a request with tools of the server, or None if it has none.

    Raise RequestError if the server has no tool of that name, or if another field of the request
    cannot be combined with them.
    """
    entries = body.tools if isinstance(body.tools, list) else []
    if not any(map(_is_own, entries)):
        return None
    if (body.n or 1) != 1:
        raise RequestError(f"n is {body.n}; with tools of the toolbox it must be 1.", "n")
    if body.kv_hints is not None:
        raise RequestError(
            "kv_hints is given with tools of the toolbox, whose chats the server keeps itself; "
            "leave one of them out.",
            "kv_hints",
            "unsupported",
        )
    found = named_entries(toolbox, entries)
    own = frozenset(tool["name"] for tool in found if _is_own(tool))
    tools = [toolbox.tools[tool["name"]] if _is_own(tool) else tool for tool in found]  # type: ignore[union-attr]
    return ToolboxTurns(toolbox, msgspec.structs.replace(body, tools=tools), own)  # type: ignore[arg-type]


def named_entries(toolbox: Toolbox | None, entries: Sequence[Any]) -> list[Any]:
    """Return the entries of ``tools``. A toolbox entry becomes one entry for each tool that it
    names. Raise RequestError."""
    found, own = list[Any](), set[str]()
    for i, tool in enumerate(entries):
        names = _named(toolbox, f"tools[{i}]", tool) if _is_own(tool) else []
        found += [{"type": KIND, "name": name} for name in names if name not in own]
        own |= set(names)
        if not _is_own(tool):
            found.append(tool)
    return found


def _is_own(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == KIND


def _named(toolbox: Toolbox | None, where: str, tool: Message) -> list[str]:
    """Return the names of the tools that a toolbox entry means: one, or all. Raise RequestError."""
    if toolbox is None:
        raise RequestError(
            f"{where}.type is {KIND!r}; this server has no toolbox (--toolbox).", "tools"
        )
    if unknown := set(tool) - {"type", "name"}:
        raise RequestError(f"{where} has {min(unknown)!r:.60}; give type and name.", "tools")
    name = tool.get("name")
    if name is None:
        return list(toolbox.tools)
    if name not in toolbox.tools:
        known = ", ".join(toolbox.tools)
        raise RequestError(f"{where}.name is {name!r:.60}; the toolbox has {known}.", "tools")
    return [name]


def _free(choice: Any) -> Any:
    """Return the ``tool_choice`` of a later turn: "auto" for "required", as the call was made."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        return {"type": "allowed_tools", "allowed_tools": {**inner, "mode": "auto"}}
    return "auto" if choice == "required" or isinstance(choice, dict) else choice


def with_earlier_calls(body: ChatRequest) -> ChatRequest:
    """Return the request with the server's calls of earlier replies as messages of their own.
    Clients send these back in field ``toolbox_messages`` of the assistant's messages. Raise
    RequestError."""
    if not any(message.get(FIELD) is not None for message in body.messages):
        return body
    messages = list[Message]()
    for i, message in enumerate(body.messages):
        earlier = message.get(FIELD)
        earlier = [] if earlier is None else earlier
        if not isinstance(earlier, list) or not all(isinstance(one, dict) for one in earlier):
            raise RequestError(f"messages[{i}].{FIELD} must be a list of messages.", "messages")
        messages += [*earlier, {key: value for key, value in message.items() if key != FIELD}]
    return msgspec.structs.replace(body, messages=messages)
