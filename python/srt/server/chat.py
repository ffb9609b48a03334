"""POST /v1/chat/completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from srt.core.messages import TopPairs
from srt.program.output import Output
from srt.program.request import Ask, Logprobs, RequestError
from srt.program.tool_parser import Begin, Delta, Words
from srt.server.body import read_body
from srt.server.errors import json_response
from srt.server.openai import (
    Collected,
    Progress,
    Reply,
    SharedBody,
    finish_fields,
    new_reply,
    refuse,
    sampling_of,
    usage,
)
from srt.server.service import Service
from srt.server.stream import respond, unless_gone
from srt.server.tools import ToolUse, delta_of, message_of, read_tools, with_tools

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
KIND, CHUNK = "chat.completion", "chat.completion.chunk"


class ChatBody(SharedBody, kw_only=True):
    """``max_tokens`` unset: whatever the context has room for."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    audio: Any = None
    modalities: list[str] | None = None


async def chat_completions(service: Service, request: Request) -> Response:
    body = await read_body(request, ChatBody, service.body_limit)
    use = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    ask = await _ask(service, body, use)
    reply = new_reply(service, body, "chatcmpl")
    with nullcontext() if use is None else use.named():
        if body.stream:
            return await respond(request, _events(service, body, reply, ask, use))
        results = await unless_gone(request, service.finish([ask]))
    choices = []
    for output in results[0]:
        stream = _Stream(use)
        message = message_of(stream.read(output.text, True))
        choice = {"index": output.index, "message": message, "logprobs": None}
        if ask.logprobs is not None:
            choice["logprobs"] = _logprobs(service, output, range(output.released))
        choices.append({**choice, **finish_fields(output, stream.called)})
    return json_response({**reply.head(KIND), "choices": choices, "usage": usage(results)})


async def _ask(service: Service, body: ChatBody, use: ToolUse | None) -> Ask:
    if body.chat_template:
        raise RequestError(
            "A request may not bring its own chat_template; start the server with --chat-template.",
            "chat_template",
            "forbidden",
        )
    for name in ("functions", "audio"):
        refuse(name, getattr(body, name))
    if set(body.modalities or ["text"]) != {"text"}:
        refuse("modalities", body.modalities)
    limit = body.max_completion_tokens
    limit = body.max_tokens if limit is None else limit
    if limit is not None and limit < 1:
        raise RequestError(f"max_tokens is {limit}; it must be at least 1.", "max_tokens")
    logprobs = None
    if body.logprobs:
        logprobs = Logprobs(top=body.top_logprobs or 0)
    elif body.top_logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", "top_logprobs")
    sampling = sampling_of(body, service.info.context_length if limit is None else limit)
    if use is not None:
        constraint = use.constraint(sampling.constraint)
        special = service.tokenizer.special_ids
        hidden = any(service.tokenizer.id_of(mark) in special for mark in use.format.marks)
        sampling = msgspec.structs.replace(
            sampling,
            constraint=constraint,
            skip_special_tokens=sampling.skip_special_tokens and not hidden,
        )
    ids = await service.completion.encode_prompt(_prompt(service, body, use), False)
    rid, salt = body.rid or "", body.cache_salt or ""
    whole = body.choices_scoring == "whole"
    return Ask(ids, sampling, logprobs, rid, body.priority or 0, salt, score_choices=whole)


def _prompt(service: Service, body: ChatBody, use: ToolUse | None) -> str:
    """The conversation as the model's own template writes it."""
    if not body.messages:
        raise RequestError("messages is empty; give at least one.", "messages")
    messages = [_message(i, message) for i, message in enumerate(body.messages)]
    messages, told = with_tools(messages, service.tokenizer.chat_template or "", use)
    generation = True if body.add_generation_prompt is None else body.add_generation_prompt
    variables = {
        key: value
        for key, value in (body.chat_template_kwargs or {}).items()
        if key not in ("messages", "tools", "add_generation_prompt", "continue_final_message")
    }
    try:
        return service.tokenizer.apply_chat_template(
            messages,
            generation,
            continue_final_message=bool(body.continue_final_message),
            **variables,
            **told,
        )
    except (ValueError, TypeError) as error:
        raise RequestError(f"{error}.", "messages") from error


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message whose content is text. Raises RequestError."""
    where, role = f"messages[{index}]", message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role is {role!r}; use one of {', '.join(ROLES)}.", "messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(where, part) for part in content)
    if content is None and role != "assistant":
        raise RequestError(f"{where}.content is missing.", "messages")
    if not isinstance(content, str | None):
        raise RequestError(f"{where}.content must be text or a list of parts.", "messages")
    role = "system" if role == "developer" else role
    return {**message, "role": role, "content": content or ""}


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError(
        f"{where}.content has a part of type {kind!r}; only text is available in this version.",
        "messages",
        "unsupported",
    )


async def _events(
    service: Service, body: ChatBody, reply: Reply, ask: Ask, use: ToolUse | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    counted = bool(body.stream_options and body.stream_options.include_usage)
    head = {**reply.head(CHUNK), **({"usage": None} if counted else {})}
    interval = service.config.server.stream_interval
    streams: defaultdict[int, _Stream] = defaultdict(lambda: _Stream(use))
    collected = Collected(1)

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**head, "choices": [{**choice, **more}]}

    async with aclosing(service.run([ask])) as items:
        async for _, output in items:
            collected.note(0, output)
            # Read once: while a chunk is on its way the output may finish, and come again for that.
            finished, stream = output.finish is not None, streams[output.index]
            if not stream.sent.begun:
                stream.sent.begun = True
                yield chunk(output.index, {"role": "assistant", "content": ""})
            if stream.sent.ready(output, interval):
                deltas, tokens = stream.take(output, finished)
                more = {}
                if ask.logprobs is not None and tokens:
                    more["logprobs"] = _logprobs(service, output, tokens)
                    deltas = deltas or [{"content": ""}]
                for delta in deltas:
                    yield chunk(output.index, delta, **more)
                    more = {}
            if finished:
                yield chunk(output.index, {}, **finish_fields(output, stream.called))
    if counted:
        yield {**head, "choices": [], "usage": collected.usage()}


class _Stream:
    """What a stream has sent of one completion, and the reader of its calls.

    ``called``: there are calls, and the last one is whole.
    """

    def __init__(self, use: ToolUse | None) -> None:
        self.sent, self._calls = Progress(), 0
        self._parser = None if use is None else use.parser()

    @property
    def called(self) -> bool:
        return self._parser is not None and self._calls > 0 and not self._parser.cut

    def take(self, output: Output, finished: bool) -> tuple[list[dict[str, Any]], range]:
        """The deltas of what was not sent yet, and its tokens."""
        text, tokens = self.sent.take(output)
        return [delta_of(delta) for delta in self.read(text, finished)], tokens

    def read(self, text: str, finished: bool) -> list[Delta]:
        """What the next piece of the text adds."""
        if self._parser is None:
            return [Words(text)] if text else []
        deltas = [*self._parser.feed(text), *(self._parser.finish() if finished else ())]
        self._calls += sum(isinstance(delta, Begin) for delta in deltas)
        return deltas


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
