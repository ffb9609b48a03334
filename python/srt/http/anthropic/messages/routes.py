"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from sglang.srt.http.anthropic.messages.messages_body import MessagesBody
from sglang.srt.http.anthropic.messages.messages_chat import chat_of, spelled
from sglang.srt.http.anthropic.messages.messages_reply import (
    Blocks,
    content_of,
    new_id,
    stopping,
    usage,
)
from sglang.srt.http.exchange.error_replies import anthropic_body, json_response
from sglang.srt.http.exchange.event_stream import Form, respond, typed_event, unless_gone
from sglang.srt.http.exchange.json_body import read_body
from sglang.srt.http.openai.chat.chat_request import Reader, Talk, read_talk, thought_tokens
from sglang.srt.http.server_state import ServerState
from sglang.srt.program.output import Output
from sglang.srt.program.request_error import RequestError
from sglang.srt.runtime.offload import offload
from starlette.requests import Request
from starlette.responses import Response

ANTHROPIC = Form(typed_event, b"", anthropic_body)
PING = {"type": "ping"}


async def messages(state: ServerState, request: Request) -> Response:
    body = await read_body(request, MessagesBody, state.body_limit)
    if body.max_tokens is None:
        raise RequestError("max_tokens is missing; give a number of tokens.", "max_tokens")
    with spelled():
        talk = await _talk(state, body)
        talk = replace(talk, ask=replace(talk.ask, rid=body.rid or new_id("msg")))
        with talk.named():
            if body.stream:
                return await respond(request, _events(state, body, talk), ANTHROPIC)
            ((output,),) = await unless_gone(request, state.finish([talk.ask]))
    reader, blocks = talk.reader(), _blocks(body)
    events = [*blocks.add(reader.take(output, True)[0]), *blocks.end()]
    stop = stopping(output, reader.called, body.max_tokens)
    counts = _counts(state, talk, output, reader)
    told = {"content": content_of(events, not reader.called), **stop, "usage": counts}
    return json_response({**_head(state, body, talk), **told})


async def count_tokens(state: ServerState, request: Request) -> Response:
    """Tokens of the prompt that the same body would make."""
    body = await read_body(request, MessagesBody, state.body_limit)
    with spelled():
        talk = await _talk(state, body, fits=False)
    return json_response({"input_tokens": len(talk.ask.prompt)})


async def _talk(state: ServerState, body: MessagesBody, fits: bool = True) -> Talk:
    """``fits``: what is too long for the model is refused. Raises RequestError."""
    count = sum(1 if isinstance(m.content, str) else len(m.content) for m in body.messages)
    chat = await offload(count, chat_of, body)
    if body.max_tokens != 0:
        return await read_talk(state, chat, fits)
    talk = await read_talk(state, msgspec.structs.replace(chat, max_tokens=1), fits)
    sampling = replace(talk.ask.sampling, max_new_tokens=0, min_new_tokens=0)
    return replace(talk, ask=replace(talk.ask, sampling=sampling))


async def _events(
    state: ServerState, body: MessagesBody, talk: Talk
) -> AsyncGenerator[dict[str, Any], None]:
    interval = state.config.server.stream_interval
    reader, blocks, begun = talk.reader(), _blocks(body), False
    async with aclosing(state.run([talk.ask])) as items:
        async for _, output in items:
            # Read once: while a chunk is on its way the output may finish, and come again for that.
            finished = output.finish is not None
            if not begun:
                begun = True
                yield _start(_head(state, body, talk), output)
                yield PING
            if reader.sent.ready(output, interval):
                for event in blocks.add(reader.take(output, finished)[0]):
                    yield event
            if finished:
                for event in blocks.end():
                    yield event
                stop = stopping(output, reader.called, body.max_tokens or 0)
                counts = _counts(state, talk, output, reader)
                yield {"type": "message_delta", "delta": stop, "usage": counts}
    yield {"type": "message_stop"}


def _blocks(body: MessagesBody) -> Blocks:
    choice = body.tool_choice
    return Blocks(body.shows_thinking, choice is None or not choice.disable_parallel_tool_use)


def _counts(state: ServerState, talk: Talk, output: Output, reader: Reader) -> dict[str, Any]:
    apart = talk.thinking is not None
    return usage(output, thought_tokens(state, talk, output, reader) if apart else None)


def _head(state: ServerState, body: MessagesBody, talk: Talk) -> dict[str, Any]:
    model = body.model or state.runtime.model_name
    return {"id": talk.ask.rid, "type": "message", "role": "assistant", "model": model}


def _start(head: dict[str, Any], output: Output) -> dict[str, Any]:
    """The first event. What was met in the cache is not known yet."""
    stop = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
    counts = {**usage(output, None), "output_tokens": 0}
    message = {**head, "content": [], **stop, "usage": counts}
    return {"type": "message_start", "message": message}
