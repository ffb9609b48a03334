"""A reply of /v1/messages: its content blocks, whole or as events, its stop reason, its usage."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import from_json
from sglang.semantics.tool_calls.deltas import Arguments, Begin, Delta, Thought
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.conversations.chat_request import ChatCall
from sglang.srt.web.anthropic.messages.messages_body import MessagesBody
from sglang.srt.web.server_state import ServerState

SERVER = "toolbox"  # server_name in calls of the server's tools
NOT_JSON = "INVALID_JSON"  # key that holds the text if a call's arguments are no JSON object


PING = {"type": "ping"}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


class Blocks:
    """Converter of deltas to the events of content blocks.

    Args:
        thoughts: the reply has thinking blocks; otherwise reasoning is left out.
        many: the reply may have several calls; otherwise everything after the first is left out.
    """

    def __init__(self, thoughts: bool, many: bool) -> None:
        self._thoughts, self._many = thoughts, many
        self._index, self._open = -1, ""
        self._full = False
        self._signature = hashlib.sha256()

    def add(self, deltas: Iterable[Delta]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for delta in deltas:
            if self._shows(delta):
                events += self._add(delta)
        return events

    def calling(self, calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return whole blocks for calls that the server runs."""
        events: list[dict[str, Any]] = []
        for call in calls:
            function = call["function"]
            block = {"id": call["id"], "name": function["name"], "server_name": SERVER}
            block["input"] = _input(function["arguments"], False)
            events += self._begin("mcp_tool_use", block)
        return [*events, *self.end()]

    def called(
        self, results: Iterable[dict[str, Any]], failed: frozenset[str]
    ) -> list[dict[str, Any]]:
        """Return blocks with the results of the server's calls. ``failed``: ids of failed calls."""
        events: list[dict[str, Any]] = []
        for result in results:
            id, content = result["tool_call_id"], [{"type": "text", "text": result["content"]}]
            block = {"tool_use_id": id, "is_error": id in failed, "content": content}
            events += self._begin("mcp_tool_result", block)
        return [*events, *self.end()]

    def end(self) -> list[dict[str, Any]]:
        """Return the events that close the last block."""
        kind, self._open = self._open, ""
        if not kind:
            return []
        events = [{"type": "content_block_stop", "index": self._index}]
        if kind == "thinking":
            signature = self._signature.hexdigest()
            events.insert(0, self._delta("signature_delta", "signature", signature))
        return events

    def _shows(self, delta: Delta) -> bool:
        if self._open == "tool_use" and not self._many:
            self._full |= not isinstance(delta, Arguments)
        return not self._full and (self._thoughts or not isinstance(delta, Thought))

    def _add(self, delta: Delta) -> list[dict[str, Any]]:
        if isinstance(delta, Begin):
            block = {"id": new_id("toolu"), "name": delta.name, "input": {}}
            return self._begin("tool_use", block)
        if isinstance(delta, Arguments):
            return [self._delta("input_json_delta", "partial_json", delta.text)]
        if isinstance(delta, Thought):
            begun = self._going("thinking", {"thinking": "", "signature": ""})
            self._signature.update(delta.text.encode())
            return [*begun, self._delta("thinking_delta", "thinking", delta.text)]
        return [*self._going("text", {"text": ""}), self._delta("text_delta", "text", delta.text)]

    def _going(self, kind: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        return [] if self._open == kind else self._begin(kind, block)

    def _begin(self, kind: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        events = self.end()
        self._index, self._open = self._index + 1, kind
        self._signature = hashlib.sha256()
        start = {"type": "content_block_start", "index": self._index}
        return [*events, {**start, "content_block": {"type": kind, **block}}]

    def _delta(self, kind: str, field: str, text: str) -> dict[str, Any]:
        delta = {"type": kind, field: text}
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def blocks_of(body: MessagesBody) -> Blocks:
    choice = body.tool_choice
    return Blocks(body.shows_thinking, choice is None or not choice.disable_parallel_tool_use)


def content_of(events: Iterable[dict[str, Any]], cut: bool) -> list[dict[str, Any]]:
    """Return the content blocks that the events describe. ``cut``: a call at the end is
    incomplete."""
    blocks: list[dict[str, Any]] = []
    pieces: list[dict[str, list[str]]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            pieces.append({})
        elif event["type"] == "content_block_delta":
            _, (field, text) = event["delta"].items()
            pieces[event["index"]].setdefault(field, []).append(text)
    for block, found in zip(blocks, pieces):
        texts = {field: "".join(parts) for field, parts in found.items()}
        if block["type"] == "tool_use":
            partial = cut and block is blocks[-1]
            block["input"] = _input(texts.get("partial_json", ""), partial)
        else:
            block.update(texts)
    return blocks


def _input(text: str, partial: bool) -> dict[str, Any]:
    """Parse a call's arguments. ``partial``: the text may be the beginning of an object."""
    try:
        value = from_json(text or "{}", allow_inf_nan=False, allow_partial=partial)
    except ValueError:
        return {NOT_JSON: text}
    return value if isinstance(value, dict) else {NOT_JSON: text}


def usage(outputs: Sequence[Output], thoughts: int | None) -> dict[str, Any]:
    """Return the token counts, summed over the turns of a reply. Anthropic's ``input_tokens`` are
    the tokens that were not cached; writing to the cache is not charged. ``thoughts``: number of
    reasoning tokens; None if reasoning is a part of the answer."""
    cached = sum(output.stats.cached_tokens for output in outputs)
    details = {} if thoughts is None else {"output_tokens_details": {"thinking_tokens": thoughts}}
    return {
        "input_tokens": sum(output.stats.prompt_tokens for output in outputs) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": sum(output.completion_tokens for output in outputs),
        **details,
    }


def stopping(output: Output, called: bool, limit: int) -> dict[str, Any]:
    """Return the reason for the end of a finished output. ``limit``: the requested ``max_tokens``.

    An aborted output, or one that no token could follow, is reported as a refusal: the only reason
    after which clients do not use the text.
    """
    assert output.finish is not None
    reason, matched = output.finish.reason, output.finish.matched
    sequence = matched if isinstance(matched, str) else None
    found: dict[str, Any] = {
        "stop_reason": "end_turn",
        "stop_sequence": sequence,
        "stop_details": None,
    }
    if reason == "length":
        full = output.completion_tokens < limit
        found["stop_reason"] = "model_context_window_exceeded" if full else "max_tokens"
    elif reason != "stop":
        why = output.finish.message or f"The completion ended by {reason}."
        details = {"type": "refusal", "category": None, "explanation": why}
        found |= {"stop_reason": "refusal", "stop_details": details}
    elif called:
        found["stop_reason"] = "tool_use"
    elif sequence is not None:
        found["stop_reason"] = "stop_sequence"
    return found


def head(state: ServerState, body: MessagesBody, call: ChatCall) -> dict[str, Any]:
    model = body.model or state.runtime.model_name
    return {"id": call.request.rid, "type": "message", "role": "assistant", "model": model}


def start(head: dict[str, Any], output: Output) -> dict[str, Any]:
    """Return the first event of a stream. The number of cached tokens is not known yet."""
    stop = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
    counts = {**usage([output], None), "output_tokens": 0}
    message = {**head, "content": [], **stop, "usage": counts}
    return {"type": "message_start", "message": message}
