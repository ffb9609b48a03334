"""Replies of /v1/chat/completions: the assistant's message, whole or in pieces."""

from __future__ import annotations

from typing import Any

from sglang.semantics.tool_calls.deltas import AnswerWords, Begin, Delta, Thought
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.conversations.chat_request import ChatCall, ReplyReader
from sglang.srt.runtime.conversations.reply_message import new_call_id
from sglang.srt.web.openai.reply_fields import finish_fields, logprob_of
from sglang.srt.web.server_state import ServerState

OPENING: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": None}
CLOSING: dict[str, Any] = {"reasoning_content": None}
"""The first and the last delta of a stream. Some clients read ``reasoning_content`` of each."""


def delta_of(delta: Delta, legacy: bool = False) -> dict[str, Any]:
    """Return a delta in the form of a stream's chunk. ``legacy``: as ``function_call``."""
    if isinstance(delta, AnswerWords):
        return {"content": delta.text, "reasoning_content": None}
    if isinstance(delta, Thought):
        return {"reasoning_content": delta.text}
    call: dict[str, Any] = {"index": delta.call}
    if isinstance(delta, Begin):
        call |= {"id": new_call_id(), "type": "function"}
        call["function"] = {"name": delta.name, "arguments": ""}
    else:
        call["function"] = {"arguments": delta.text}
    shown = {"function_call": call["function"]} if legacy else {"tool_calls": [call]}
    return {**shown, "reasoning_content": None}


def finish_of(call: ChatCall, output: Output, reader: ReplyReader) -> dict[str, Any]:
    """Return the fields of a reply that say why it ended (``finish_reason``)."""
    found = finish_fields(output, reader.called)
    if call.legacy and found["finish_reason"] == "tool_calls":
        found["finish_reason"] = "function_call"
    return found


def counts_of(call: ChatCall, counts: dict[str, Any], thoughts: int) -> dict[str, Any]:
    """Return the usage, with the number of reasoning tokens if reasoning is separate."""
    if call.thinking is None:
        return counts
    details = {**counts.get("completion_tokens_details", {}), "reasoning_tokens": thoughts}
    return {**counts, "completion_tokens_details": details}


def logprobs_of(state: ServerState, output: Output, which: range) -> dict[str, Any]:
    """Return the log-probabilities of the tokens with the indices ``which``."""
    table = state.runtime.tokenizer.token_bytes
    return {"content": [logprob_of(output, i, table) for i in which], "refusal": None}
