"""POST /v1/chat/completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from srt.core.messages import TopPairs
from srt.program.output import Output
from srt.server.body import read_body
from srt.server.errors import json_response
from srt.server.openai import Collected, Reply, finish_fields, new_reply, usage
from srt.server.service import Service
from srt.server.stream import respond, unless_gone
from srt.server.talk import ChatBody, Reader, Talk, read_talk
from srt.server.tools import delta_of, message_of

KIND, CHUNK = "chat.completion", "chat.completion.chunk"


async def chat_completions(service: Service, request: Request) -> Response:
    body = await read_body(request, ChatBody, service.body_limit)
    talk = await read_talk(service, body)
    reply = new_reply(service, body, "chatcmpl")
    with talk.named():
        if body.stream:
            return await respond(request, _events(service, body, reply, talk))
        results = await unless_gone(request, service.finish([talk.ask]))
    choices = []
    for output in results[0]:
        reader = talk.reader()
        message = message_of(reader.read(output.text, True))
        choice = {"index": output.index, "message": message, "logprobs": None}
        if talk.ask.logprobs is not None:
            choice["logprobs"] = _logprobs(service, output, range(output.released))
        choices.append({**choice, **finish_fields(output, reader.called)})
    return json_response({**reply.head(KIND), "choices": choices, "usage": usage(results)})


async def _events(
    service: Service, body: ChatBody, reply: Reply, talk: Talk
) -> AsyncGenerator[dict[str, Any], None]:
    counted = bool(body.stream_options and body.stream_options.include_usage)
    head = {**reply.head(CHUNK), **({"usage": None} if counted else {})}
    interval = service.config.server.stream_interval
    readers: defaultdict[int, Reader] = defaultdict(talk.reader)
    collected = Collected(1)

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**head, "choices": [{**choice, **more}]}

    async with aclosing(service.run([talk.ask])) as items:
        async for _, output in items:
            collected.note(0, output)
            # Read once: while a chunk is on its way the output may finish, and come again for that.
            finished, reader = output.finish is not None, readers[output.index]
            if not reader.sent.begun:
                reader.sent.begun = True
                yield chunk(output.index, {"role": "assistant", "content": ""})
            if reader.sent.ready(output, interval):
                found, tokens = reader.take(output, finished)
                deltas, more = [delta_of(delta) for delta in found], {}
                if talk.ask.logprobs is not None and tokens:
                    more["logprobs"] = _logprobs(service, output, tokens)
                    deltas = deltas or [{"content": ""}]
                for delta in deltas:
                    yield chunk(output.index, delta, **more)
                    more = {}
            if finished:
                yield chunk(output.index, {}, **finish_fields(output, reader.called))
    if counted:
        yield {**head, "choices": [], "usage": collected.usage()}


def _logprobs(service: Service, output: Output, which: range) -> dict[str, Any]:
    table = service.tokenizer.token_bytes

    def entry(token: int, value: float) -> dict[str, Any]:
        data = table[token] if token < len(table) else b""
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": value,
            "bytes": list(data),
        }

    def tops(i: int) -> TopPairs:
        return output.tops[i] if output.tops else []

    content = [
        {
            **entry(output.tokens[i], output.logprobs[i]),
            "top_logprobs": [entry(token, value) for token, value in tops(i)],
        }
        for i in which
    ]
    return {"content": content, "refusal": None}
