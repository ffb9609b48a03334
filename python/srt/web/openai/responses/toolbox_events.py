"""Responses with the operator's tools: all turns of the model as the items of one response.

The server's calls are ``mcp_call`` items, the API's type for tools of any name.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from sglang.srt.runtime.conversations.chat_request import ChatCall
from sglang.srt.runtime.conversations.reply_message import calls_of
from sglang.srt.runtime.conversations.toolbox_replies import (
    Called,
    Calling,
    Ending,
    ToolboxReply,
    Words,
)
from sglang.srt.runtime.conversations.toolbox_turns import ToolboxTurns
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.openai.responses.answer import Answer
from sglang.srt.web.openai.responses.item_writer import Event
from sglang.srt.web.openai.responses.responses_body import in_own_words
from sglang.srt.web.openai.responses.token_pieces import TokenPieces
from sglang.srt.web.server_state import ServerState


async def written_turns(
    state: ServerState, call: ChatCall, answer: Answer, interval: int, turns: ToolboxTurns
) -> AsyncGenerator[Event, None]:
    """Run all turns, and yield the events of the answer. Raises RequestError and EngineLost."""
    writer = answer.writer
    reply = ToolboxReply(
        state.runtime, CALLER.get(), turns, call, interval,
        lambda call: TokenPieces(state, call), writer.call_id,
    )  # fmt: skip
    with in_own_words():
        async with aclosing(reply.parts()) as parts:
            async for part in parts:
                for event in answer.start():
                    yield event
                if isinstance(part, Words):
                    events = writer.write(part.deltas, part.piece.logprobs)
                elif isinstance(part, Calling):
                    events = writer.calling(part.calls)
                elif isinstance(part, Called):
                    events = writer.called(part.results, part.failed)
                else:
                    events = _last(answer, part)
                for event in events:
                    yield event


def _last(answer: Answer, end: Ending) -> list[Event]:
    events = answer.writer.write(calls_of(end.message))
    return [*events, *answer.end(end.outputs, end.reader.called, end.thoughts)]
