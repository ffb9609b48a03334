"""Server calls: ``mcp_call`` items, for calls that the server runs itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from sglang.srt.runtime.conversations.toolbox_turns import KIND

Item = dict[str, Any]
ANSWERED = ("completed", "failed")


def begun(call: dict[str, Any]) -> Item:
    """Return the item of a chat's call that begins to run."""
    return {
        "id": call["id"],
        "type": "mcp_call",
        "status": "in_progress",
        "server_label": KIND,
        **call["function"],
        "output": None,
        "error": None,
        "approval_request_id": None,
    }


def answered(item: Item, text: str, failed: bool) -> Item:
    """Return the item with its result: the text that the model gets."""
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
    return {
        **item,
        "status": "failed" if failed else "completed",
        "output": None if failed else text,
        "error": error if failed else None,
    }


def error_text(error: Any) -> Any:
    """Return the text of an error. In earlier versions of the API an error was plain text."""
    content = error.get("content") if isinstance(error, dict) else error
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        return content[0].get("text")
    return content


def with_results(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, with each server call as a function call and its output. Calls of one turn
    come first, then their outputs. A call without a result is left out."""
    for turn, group in groupby(items, _turn):
        if not turn:
            yield from group
            continue
        calls = [item for item in group if item["status"] in ANSWERED]
        for item in calls:
            function = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "function_call", "call_id": item["id"], **function}
        for item in calls:
            text = error_text(item["error"]) if item["output"] is None else item["output"]
            yield {"type": "function_call_output", "call_id": item["id"], "output": text}


def call_place(turn: int, index: int) -> str:
    """Return the last part of a call's id."""
    return f"{turn}x{index}"


def _turn(item: Item) -> str:
    """Return the beginning of a server call's id, which the calls of one turn share; "" for other
    items."""
    if item["type"] != "mcp_call":
        return ""
    id: str = item["id"]
    return id.rpartition("x")[0] or id
