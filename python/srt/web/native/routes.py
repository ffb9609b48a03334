"""POST /generate, /encode and /classify, and sessions: the native API."""

from __future__ import annotations

import time
import uuid
from typing import Any

from msgspec import UNSET
from sglang.srt.runtime.classification import ClassifyRequest
from sglang.srt.runtime.classification import classify as classified
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.generated import Generated
from sglang.srt.runtime.generation import generate as generated
from sglang.srt.runtime.generation import stream
from sglang.srt.runtime.sessions import CloseSession, OpenSession
from sglang.srt.runtime.vectors import EncodeRequest
from sglang.srt.runtime.vectors import encode as encoded
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import EventForm, event, respond, unless_gone
from sglang.srt.web.exchange.json_body import read_body, read_optional_body
from sglang.srt.web.openai.reply_fields import usage_of_prompts
from sglang.srt.web.server_state import ServerState
from sglang.srt.web.telemetry.request_record import record
from starlette.requests import Request
from starlette.responses import Response


def numbered_event(value: Any) -> bytes:
    """Return an event of ``/generate``. Its id is the number of the completion's tokens so far,
    preceded by the completion's index if there are several."""
    if not isinstance(value, Generated):
        return event(value)
    count = value.meta_info.completion_tokens
    if value.index is UNSET:
        return b"id: %d\n%b" % (count, event(value))
    return b"id: %d:%d\n%b" % (value.index, count, event(value))


NUMBERED = EventForm(numbered_event)


async def generate(state: ServerState, request: Request) -> Response:
    body = await read_body(request, GenerateRequest, state.body_limit)
    record().private = bool(body.no_logs)
    if body.stream:
        return await respond(request, stream(state.runtime, body, CALLER.get()), NUMBERED)
    work = generated(state.runtime, body, CALLER.get())
    return json_response(await unless_gone(request, work))


async def encode(state: ServerState, request: Request) -> Response:
    body = await read_body(request, EncodeRequest, state.body_limit)
    return json_response(await unless_gone(request, encoded(state.runtime, body, CALLER.get())))


async def classify(state: ServerState, request: Request) -> Response:
    """Return the labels of texts, by a model with a classification head."""
    body = await read_body(request, ClassifyRequest, state.body_limit)
    work = classified(state.runtime, body, CALLER.get())
    data, found = await unless_gone(request, work)
    return json_response(
        {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or state.runtime.model_name,
            "data": data,
            "usage": usage_of_prompts(found),
        }
    )


async def open_session(state: ServerState, request: Request) -> Response:
    body = await read_optional_body(request, OpenSession, state.body_limit)
    return json_response(state.runtime.sessions.open(body, CALLER.get().tenant))


async def close_session(state: ServerState, request: Request) -> Response:
    body = await read_body(request, CloseSession, state.body_limit)
    closed = state.runtime.sessions.close(body.session_id, CALLER.get().tenant)
    return json_response({"status": "ok", "closed": closed})
