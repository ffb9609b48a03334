"""Messages with the operator's tools: all turns of the model as the blocks of one message.

The server's calls are blocks of MCP tools: ``mcp_tool_use`` with its whole input, and
``mcp_tool_result``. Anthropic's other block types each belong to one particular tool.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from sglang.srt.runtime.conversations.chat_request import ChatCall
from sglang.srt.runtime.conversations.reply_message import calls_of
from sglang.srt.runtime.conversations.toolbox_replies import (
    Called,
    Calling,
    Ending,
    Part,
    ToolboxReply,
    Words,
)
from sglang.srt.runtime.conversations.toolbox_turns import ToolboxTurns
from sglang.srt.web.anthropic.messages.messages_body import MessagesBody
from sglang.srt.web.anthropic.messages.messages_chat import spelled
from sglang.srt.web.anthropic.messages.messages_reply import (
    PING,
    Blocks,
    blocks_of,
    content_of,
    head,
    new_id,
    start,
    stopping,
    usage,
)
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.server_state import ServerState


async def whole_turns(
    state: ServerState, body: MessagesBody, call: ChatCall, turns: ToolboxTurns
) -> dict[str, Any]:
    """Run all turns, and return the whole message."""
    blocks, events = blocks_of(body), list[dict[str, Any]]()
    async with aclosing(_reply(state, turns, call, None).parts()) as parts:
        async for part in parts:
            events += _events(blocks, part)
    assert isinstance(part, Ending)
    content = content_of(events, not part.reader.called)
    return {**head(state, body, call), "content": content, **_stop(body, part), **_counts(part)}


async def turn_events(
    state: ServerState, body: MessagesBody, call: ChatCall, turns: ToolboxTurns
) -> AsyncGenerator[dict[str, Any], None]:
    """Run all turns, and yield the events of the stream."""
    blocks, begun = blocks_of(body), False
    interval = state.config.server.stream_interval
    with spelled():
        async with aclosing(_reply(state, turns, call, interval).parts()) as parts:
            async for part in parts:
                if not begun and isinstance(part, Words):
                    begun = True
                    yield start(head(state, body, call), part.output)
                    yield PING
                for event in _events(blocks, part):
                    yield event
                if isinstance(part, Ending):
                    yield {"type": "message_delta", "delta": _stop(body, part), **_counts(part)}
    yield {"type": "message_stop"}


def _reply(
    state: ServerState, turns: ToolboxTurns, call: ChatCall, interval: int | None
) -> ToolboxReply:
    def id_of(turn: int, index: int) -> str:
        return new_id("toolu")

    return ToolboxReply(state.runtime, CALLER.get(), turns, call, interval, id_of=id_of)


def _events(blocks: Blocks, part: Part) -> list[dict[str, Any]]:
    """Return the events of one part of the reply."""
    if isinstance(part, Words):
        return blocks.add(part.deltas)
    if isinstance(part, Calling):
        return blocks.calling(part.calls)
    if isinstance(part, Called):
        return blocks.called(part.results, part.failed)
    return [*blocks.add(calls_of(part.message)), *blocks.end()]


def _stop(body: MessagesBody, end: Ending) -> dict[str, Any]:
    return stopping(end.outputs[-1], end.reader.called, body.max_tokens or 0)


def _counts(end: Ending) -> dict[str, Any]:
    thoughts = None if end.call.thinking is None else end.thoughts
    return {"usage": usage(end.outputs, thoughts)}
