"""POST /v1/chat/completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from sglang.semantics.tool_calls.deltas import AnswerWords, Delta, Thought
from sglang.srt.runtime.conversations.call_parking import hinted_or_parked
from sglang.srt.runtime.conversations.chat_request import (
    ChatCall,
    ChatRequest,
    ReplyReader,
    read_chat,
    thought_tokens,
)
from sglang.srt.runtime.conversations.reply_message import message_of
from sglang.srt.runtime.conversations.toolbox_turns import toolbox_turns, with_earlier_calls
from sglang.srt.runtime.prompt_progress import PromptNews
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import Template, respond, unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.openai.chat.chat_reply import (
    CLOSING,
    OPENING,
    counts_of,
    delta_of,
    finish_of,
    logprobs_of,
)
from sglang.srt.web.openai.chat.toolbox_chat import CHUNK, KIND, events, whole_reply
from sglang.srt.web.openai.reply_fields import (
    Collected,
    ReplyHead,
    new_reply,
    usage,
)
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response


async def chat_completions(state: ServerState, request: Request) -> Response:
    body = with_earlier_calls(await read_body(request, ChatRequest, state.body_limit))
    turns = toolbox_turns(state.toolbox, body)
    chat = body if turns is None else turns.body
    call = await read_chat(state.runtime, chat, caller=CALLER.get())
    reply = new_reply(state, body, "chatcmpl")
    call = replace(call, request=replace(call.request, rid=reply.id))
    if turns is not None:
        if body.stream:
            return await respond(request, events(state, reply, turns, call))
        return json_response(await unless_gone(request, whole_reply(state, reply, turns, call)))
    with call.named():
        if body.stream:
            return await respond(request, _events(state, body, reply, call))
        results = await unless_gone(request, state.finish([call.request]))
    choices, thoughts, found = [], 0, {}
    for output in results[0]:
        reader = call.reader()
        message = message_of(reader.take(output, True)[0], call.legacy)
        choice = {"index": output.index, "message": message, "logprobs": None}
        if call.request.logprobs is not None:
            choice["logprobs"] = logprobs_of(state, output, range(output.released))
        choices.append({**choice, **finish_of(call, output, reader)})
        thoughts += thought_tokens(state.runtime, call, output, reader)
        found = hinted_or_parked(state.runtime, call, output, reader, CALLER.get())
    counts = counts_of(call, usage(results), thoughts)
    return json_response({**reply.head(KIND), "choices": choices, "usage": counts, **found})


async def _events(
    state: ServerState, body: ChatRequest, reply: ReplyHead, call: ChatCall
) -> AsyncGenerator[dict[str, Any] | bytes, None]:
    options = body.stream_options
    counted = bool(options and options.include_usage)
    always = counted and bool(options and options.continuous_usage_stats)
    head = {**reply.head(CHUNK), **({"usage": None} if counted else {})}
    interval = state.config.server.stream_interval
    readers: defaultdict[int, ReplyReader] = defaultdict(call.reader)
    templates: dict[tuple[int, type[Delta]], Template] = {}
    plain = call.request.logprobs is None and not always
    collected, thoughts, news = Collected(1), 0, PromptNews()

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        found = {**head, "choices": [{**choice, **more}]}
        return {**found, "usage": counts_of(call, collected.usage(), thoughts)} if always else found

    async with aclosing(state.run([call.request])) as items:
        async for _, output in items:
            collected.note(0, output)
            # Read ``finish`` once: the output may finish, and come again, while a chunk is sent.
            finished, reader = output.finish is not None, readers[output.index]
            if not reader.sent.begun:
                reader.sent.begun = True
                yield chunk(output.index, OPENING)
            if told := news.of(output):
                yield {**chunk(output.index, {}), "prompt_progress": told}
            if reader.sent.ready(output, interval):
                found, tokens = reader.take(output, finished)
                if plain and len(found) == 1 and isinstance(found[0], (AnswerWords, Thought)):
                    kind = output.index, type(found[0])
                    if kind not in templates:
                        hole = delta_of(type(found[0])(Template.HOLE))
                        templates[kind] = Template(chunk(output.index, hole))
                    yield templates[kind].event(found[0].text)
                    found = []
                deltas, more = [delta_of(delta, call.legacy) for delta in found], {}
                if call.request.logprobs is not None and tokens:
                    more["logprobs"] = logprobs_of(state, output, tokens)
                    deltas = deltas or [delta_of(AnswerWords(""))]
                for delta in deltas:
                    yield chunk(output.index, delta, **more)
                    more = {}
            if finished:
                thoughts += thought_tokens(state.runtime, call, output, reader)
                kept = hinted_or_parked(state.runtime, call, output, reader, CALLER.get())
                yield {**chunk(output.index, CLOSING, **finish_of(call, output, reader)), **kept}
    if counted:
        yield {**head, "choices": [], "usage": counts_of(call, collected.usage(), thoughts)}
