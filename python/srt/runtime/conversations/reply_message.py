"""The assistant's message of a whole reply, made of deltas, and a message's calls as deltas."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sglang.semantics.tool_calls.deltas import Arguments, Begin, Delta, Thought, joined


def new_call_id(index: int = 0) -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def message_of(
    deltas: Sequence[Delta], legacy: bool = False, id_of: Callable[[int], str] = new_call_id
) -> dict[str, Any]:
    """Return the message of a whole reply. ``legacy``: write its call as ``function_call``.
    ``id_of``: makes the id of a call from its index."""
    words, calls = joined(deltas)
    message: dict[str, Any] = {"role": "assistant", "content": words, "refusal": None}
    thoughts = "".join(delta.text for delta in deltas if isinstance(delta, Thought))
    message["reasoning_content"] = thoughts or None
    if not calls:
        return message
    message["content"] = words or None
    functions = [{"name": name, "arguments": text} for name, text in calls]
    if legacy:
        message["function_call"] = functions[0]
    else:
        message["tool_calls"] = [
            {"id": id_of(i), "type": "function", "function": function}
            for i, function in enumerate(functions)
        ]
    return message


def calls_of(message: dict[str, Any]) -> Iterator[Delta]:
    """Yield the deltas of a message's calls."""
    for i, call in enumerate(message.get("tool_calls") or []):
        yield Begin(i, call["function"]["name"])
        yield Arguments(i, call["function"]["arguments"])
