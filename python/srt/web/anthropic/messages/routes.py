"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.conversations.call_parking import hinted_or_parked
from sglang.srt.runtime.conversations.chat_request import (
    ChatCall,
    ReplyReader,
    read_chat,
    thought_tokens,
)
from sglang.srt.runtime.conversations.toolbox_turns import ToolboxTurns, toolbox_turns
from sglang.srt.runtime.offload import entries, offload
from sglang.srt.web.anthropic.messages.messages_body import MessagesBody
from sglang.srt.web.anthropic.messages.messages_chat import chat_of, spelled
from sglang.srt.web.anthropic.messages.messages_reply import (
    PING,
    blocks_of,
    content_of,
    head,
    new_id,
    start,
    stopping,
    usage,
)
from sglang.srt.web.anthropic.messages.toolbox_messages import turn_events, whole_turns
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import anthropic_body, json_response
from sglang.srt.web.exchange.event_stream import EventForm, respond, typed_event, unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

ANTHROPIC = EventForm(typed_event, b"", anthropic_body)


async def messages(state: ServerState, request: Request) -> Response:
    body = await read_body(request, MessagesBody, state.body_limit)
    if body.max_tokens is None:
        raise RequestError("max_tokens is missing; give a number of tokens.", "max_tokens")
    with spelled():
        call, turns = await _call(state, body)
        call = replace(call, request=replace(call.request, rid=body.rid or new_id("msg")))
        if turns is not None:
            if body.stream:
                told = turn_events(state, body, call, turns)
                return await respond(request, told, ANTHROPIC)
            return json_response(await unless_gone(request, whole_turns(state, body, call, turns)))
        with call.named():
            if body.stream:
                return await respond(request, _events(state, body, call), ANTHROPIC)
            ((output,),) = await unless_gone(request, state.finish([call.request]))
    reader, blocks = call.reader(), blocks_of(body)
    events = [*blocks.add(reader.take(output, True)[0]), *blocks.end()]
    kept = hinted_or_parked(state.runtime, call, output, reader, CALLER.get())
    stop = stopping(output, reader.called, body.max_tokens)
    counts = _counts(state, call, output, reader)
    reply = {"content": content_of(events, not reader.called), **stop, "usage": counts}
    return json_response({**head(state, body, call), **reply, **kept})


async def count_tokens(state: ServerState, request: Request) -> Response:
    """Return the number of prompt tokens of a body of /v1/messages."""
    body = await read_body(request, MessagesBody, state.body_limit)
    with spelled():
        call, _ = await _call(state, body, fits=False)
    return json_response({"input_tokens": len(call.request.prompt)})


async def _call(
    state: ServerState, body: MessagesBody, fits: bool = True
) -> tuple[ChatCall, ToolboxTurns | None]:
    """Return the chat, and its turns if it has tools of the server. ``fits``: refuse a prompt that
    is too long for the model. Raises RequestError."""
    chat = await offload(entries(body.messages), chat_of, body)
    turns = toolbox_turns(state.toolbox, chat)
    chat = chat if turns is None else turns.body
    caller, owner = CALLER.get() if fits else None, CALLER.get().tenant
    if body.max_tokens != 0:
        return await read_chat(state.runtime, chat, fits, caller, owner), turns
    chat = msgspec.structs.replace(chat, max_tokens=1)
    call = await read_chat(state.runtime, chat, fits, owner=owner)
    sampling = replace(call.request.sampling, max_new_tokens=0, min_new_tokens=0)
    return replace(call, request=replace(call.request, sampling=sampling)), turns


async def _events(
    state: ServerState, body: MessagesBody, call: ChatCall
) -> AsyncGenerator[dict[str, Any], None]:
    interval = state.config.server.stream_interval
    reader, blocks, begun = call.reader(), blocks_of(body), False
    async with aclosing(state.run([call.request])) as items:
        async for _, output in items:
            # Read ``finish`` once: the output may finish, and come again, while a chunk is sent.
            finished = output.finish is not None
            if not begun:
                begun = True
                yield start(head(state, body, call), output)
                yield PING
            if reader.sent.ready(output, interval):
                for event in blocks.add(reader.take(output, finished)[0]):
                    yield event
            if finished:
                kept = hinted_or_parked(state.runtime, call, output, reader, CALLER.get())
                for event in blocks.end():
                    yield event
                stop = stopping(output, reader.called, body.max_tokens or 0)
                counts = _counts(state, call, output, reader)
                yield {"type": "message_delta", "delta": stop, "usage": counts, **kept}
    yield {"type": "message_stop"}


def _counts(
    state: ServerState, call: ChatCall, output: Output, reader: ReplyReader
) -> dict[str, Any]:
    apart = call.thinking is not None
    return usage([output], thought_tokens(state.runtime, call, output, reader) if apart else None)
