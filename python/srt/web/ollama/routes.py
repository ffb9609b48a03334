"""Routes of Ollama's API: /api/chat, /api/generate, and those about models."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from sglang.srt.requests.completion.completion_request import CompletionRequest, Logprobs
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.completion_fields import CompletionFields, sampling_of
from sglang.srt.runtime.conversations.call_parking import park_at_call
from sglang.srt.runtime.conversations.chat_request import ChatCall, ChatRequest, read_chat
from sglang.srt.runtime.offload import entries, offload
from sglang.srt.runtime.prompts import read_prompt
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import respond, unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.ollama import served_models
from sglang.srt.web.ollama.ollama_bodies import (
    GeneratingBody,
    OllamaChatBody,
    OllamaGenerateBody,
    PullBody,
    ShowBody,
)
from sglang.srt.web.ollama.ollama_chat import (
    chat_of,
    prompt_chat,
    sampling_fields,
    verify_generate,
)
from sglang.srt.web.ollama.ollama_options import spelled
from sglang.srt.web.ollama.ollama_reply import NDJSON, Pieces, ended, joined, of_chat, of_prompt
from sglang.srt.web.openai.reply_fields import logprob_of
from sglang.srt.web.server_state import ServerState
from sglang.srt.web.telemetry.request_record import record
from starlette.requests import Request
from starlette.responses import Response

VERSION = "0.12.6"
"""The version of Ollama whose API is served. Clients compare it with the version that they need."""

Written = Callable[[dict[str, Any]], dict[str, Any]]  # converts a piece to fields of one route


async def chat(state: ServerState, request: Request) -> Response:
    """POST /api/chat."""
    body = await read_body(request, OllamaChatBody, state.body_limit)
    model = served_models.model_of(state.runtime, body)
    if not body.messages:
        return _loaded(body, of_chat)
    thinks = state.runtime.thought_marks is not None
    make = partial(chat_of, body, model, thinks)
    with spelled("{message}.images"):
        return await _answer(state, request, body, of_chat, entries(body.messages), make)


async def generate(state: ServerState, request: Request) -> Response:
    """POST /api/generate."""
    body = await read_body(request, OllamaGenerateBody, state.body_limit)
    model = served_models.model_of(state.runtime, body)
    verify_generate(body)
    if not body.prompt:
        return _loaded(body, of_prompt)
    if body.raw:
        with spelled():
            call = await _raw(state, body, model)
        return await _reply(state, request, body, of_prompt, call)
    make = partial(prompt_chat, body, model, state.runtime.thought_marks is not None)
    with spelled():
        return await _answer(state, request, body, of_prompt, 1, make)


async def _answer(
    state: ServerState,
    request: Request,
    body: GeneratingBody,
    written: Written,
    count: int,
    make: Callable[[], ChatRequest],
) -> Response:
    """Reply to the chat that ``make`` returns. ``count``: number of entries, the cost of ``make``.
    Raises RequestError."""
    call = await read_chat(state.runtime, await offload(count, make), caller=CALLER.get())
    return await _reply(state, request, body, written, call)


async def _reply(
    state: ServerState, request: Request, body: GeneratingBody, written: Written, call: ChatCall
) -> Response:
    rid = record().response_id = f"ollama-{uuid.uuid4().hex}"
    call = replace(call, request=replace(call.request, rid=rid))
    if body.stream is not False:
        with spelled(), call.named():
            return await respond(request, _lines(state, body, written, call), NDJSON)
    return json_response(await unless_gone(request, _whole(state, body, written, call)))


async def _raw(state: ServerState, body: OllamaGenerateBody, model: str) -> ChatCall:
    """Return a call for a raw prompt, without the chat template. Raises RequestError."""
    runtime, fields = state.runtime, CompletionFields(**sampling_fields(body, model))
    limit = fields.max_tokens
    sampling = sampling_of(fields, runtime.info.context_length if limit is None else limit)
    adapter = runtime.adapters.of(model)
    ids = await read_prompt(runtime, body.prompt or "", "prompt")
    logprobs = Logprobs(top=body.top_logprobs or 0) if body.logprobs else None
    return ChatCall(CompletionRequest(ids, sampling, logprobs, adapter=adapter), None)


async def _whole(
    state: ServerState, body: GeneratingBody, written: Written, call: ChatCall
) -> dict[str, Any]:
    """Return the reply as one object."""
    with spelled(), call.named():
        ((output,),) = await state.finish([call.request])
    reader, pieces = call.reader(), Pieces()
    found = pieces.add(reader.take(output, True)[0]) + pieces.end(reader.called)
    park_at_call(state.runtime, call, output, reader, CALLER.get())
    reply = {**_head(body), **written(joined(found)), **ended(output)}
    if call.request.logprobs is not None:
        reply["logprobs"] = _logprobs(state, output, range(output.released))
    return reply


async def _lines(
    state: ServerState, body: GeneratingBody, written: Written, call: ChatCall
) -> AsyncGenerator[dict[str, Any], None]:
    interval = state.config.server.stream_interval
    reader, pieces = call.reader(), Pieces()
    scored = call.request.logprobs is not None
    async with aclosing(state.run([call.request])) as items:
        async for _, output in items:
            # Read ``finish`` once: the output may finish, and come again, while a line is sent.
            finished = output.finish is not None
            if not reader.sent.ready(output, interval):
                continue
            deltas, tokens = reader.take(output, finished)
            found = pieces.add(deltas)
            if finished:
                found += pieces.end(reader.called)
                park_at_call(state.runtime, call, output, reader, CALLER.get())
            more = {"logprobs": _logprobs(state, output, tokens)} if scored and tokens else {}
            if more and not found:
                found = [{"content": ""}]
            for piece in found:
                yield {**_head(body), **written(piece), "done": False, **more}
                more = {}
            if finished:
                yield {**_head(body), **written({"content": ""}), **ended(output)}


def _head(body: GeneratingBody) -> dict[str, Any]:
    return {"model": body.model or body.name, "created_at": served_models.moment(time.time())}


def _logprobs(state: ServerState, output: Any, which: range) -> list[dict[str, Any]]:
    table = state.runtime.tokenizer.token_bytes
    return [logprob_of(output, i, table) for i in which]


def _loaded(body: GeneratingBody, written: Written) -> Response:
    """Reply to a request without a prompt. Clients use it to load a model, or to unload it with a
    ``keep_alive`` of 0; on this server the model stays loaded."""
    reason = "unload" if body.keep_alive in (0, "0") else "load"
    return json_response(
        {**_head(body), **written({"content": ""}), "done": True, "done_reason": reason}
    )


# -- models ---------------------------------------------------------------------------------------


async def tags(state: ServerState, request: Request) -> Response:
    """Return the served models: the model and its adapters."""
    return json_response({"models": served_models.listed(state.runtime, state.started)})


async def ps(state: ServerState, request: Request) -> Response:
    """Return the models in memory: all served ones."""
    return json_response({"models": served_models.loaded(state.runtime)})


async def show(state: ServerState, request: Request) -> Response:
    """Return facts of one model."""
    body = await read_body(request, ShowBody, state.body_limit)
    name = served_models.model_of(state.runtime, body)
    return json_response(served_models.described(state.runtime, name, state.started))


async def version(state: ServerState, request: Request) -> Response:
    """Return the version of Ollama whose API is served."""
    return json_response({"version": VERSION})


async def pull(state: ServerState, request: Request) -> Response:
    """Report success for a served model; refuse any other one, as no model is fetched."""
    body = await read_body(request, PullBody, state.body_limit)
    try:
        served_models.model_of(state.runtime, body)
    except RequestError as error:
        if error.code != "not_found":
            raise
        raise _fixed(state, "pull") from error
    return json_response({"status": "success"})


async def refuse(state: ServerState, request: Request) -> Response:
    """Refuse the request, because the models of a server do not change."""
    raise _fixed(state, request.url.path.removeprefix("/api/").partition("/")[0])


def _fixed(state: ServerState, what: str) -> RequestError:
    return RequestError(
        f"{what} is not available: this server keeps the model that it was started with, "
        f"{state.runtime.model_name!r:.200}; start one with --model-path for another model.",
        code="unsupported",
    )
