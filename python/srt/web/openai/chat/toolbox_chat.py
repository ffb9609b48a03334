"""Chats with the operator's tools: all turns of the model, answered as one reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from sglang.semantics.tool_calls.deltas import AnswerWords
from sglang.srt.runtime.conversations.chat_request import ChatCall
from sglang.srt.runtime.conversations.toolbox_replies import Called, Ending, ToolboxReply, Words
from sglang.srt.runtime.conversations.toolbox_turns import FIELD, ToolboxTurns
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.openai.chat.chat_reply import (
    CLOSING,
    OPENING,
    counts_of,
    delta_of,
    finish_of,
    logprobs_of,
)
from sglang.srt.web.openai.reply_fields import ReplyHead, usage
from sglang.srt.web.server_state import ServerState

KIND, CHUNK = "chat.completion", "chat.completion.chunk"


def _usage(end: Ending) -> dict[str, Any]:
    """Return the usage, summed over all turns."""
    return counts_of(end.call, usage([[output] for output in end.outputs]), end.thoughts)


async def whole_reply(
    state: ServerState, reply: ReplyHead, turns: ToolboxTurns, call: ChatCall
) -> dict[str, Any]:
    """Return the reply after the last turn; its log-probabilities are those of that turn."""
    answer = ToolboxReply(state.runtime, CALLER.get(), turns, call, None)
    async with aclosing(answer.parts()) as parts:
        async for part in parts:
            end = part
    assert isinstance(end, Ending)
    message, output = end.message, end.outputs[-1]
    if turns.messages:
        message[FIELD] = turns.messages
    choice = {"index": 0, "message": message, "logprobs": None}
    if end.call.request.logprobs is not None:
        choice["logprobs"] = logprobs_of(state, output, range(output.released))
    choices = [{**choice, **finish_of(end.call, output, end.reader)}]
    return {**reply.head(KIND), "choices": choices, "usage": _usage(end)}


async def events(
    state: ServerState, reply: ReplyHead, turns: ToolboxTurns, call: ChatCall
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of a stream: the text of all turns as it comes; after each turn the server's
    calls and results (``toolbox_messages``); at the end calls of the client's functions."""
    options, interval = turns.body.stream_options, state.config.server.stream_interval
    counted = bool(options and options.include_usage)
    head = {**reply.head(CHUNK), **({"usage": None} if counted else {})}
    traced, opened = call.request.logprobs is not None, False

    def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**head, "choices": [{**choice, **more}]}

    answer = ToolboxReply(state.runtime, CALLER.get(), turns, call, interval)
    async with aclosing(answer.parts()) as parts:
        async for part in parts:
            if not opened:
                opened = True
                yield chunk(OPENING)
            if isinstance(part, Words):
                shown, more = [delta_of(delta) for delta in part.deltas], {}
                if traced and part.piece.tokens:
                    more["logprobs"] = logprobs_of(state, part.output, part.piece.tokens)
                    shown = shown or [delta_of(AnswerWords(""))]
                for delta in shown:
                    yield chunk(delta, **more)
                    more = {}
            elif isinstance(part, Called):
                yield chunk({FIELD: part.messages})
            elif isinstance(part, Ending):
                for index, one in enumerate(part.message.get("tool_calls") or []):
                    yield chunk(
                        {"tool_calls": [{"index": index, **one}], "reasoning_content": None}
                    )
                yield chunk(CLOSING, **finish_of(part.call, part.outputs[-1], part.reader))
                if counted:
                    yield {**head, "choices": [], "usage": _usage(part)}
