"""POST /v1/session, /v1/submit, /v1/get, /v1/set and /v1/cancel: programs sent whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.programs.program_bodies import (
    CancelBody,
    CancelledReply,
    GetBody,
    OpenProgramSession,
    ProgramSessionReply,
    SetBody,
    SubmitBody,
    SubmittedReply,
    ValueReply,
)
from sglang.srt.runtime.programs.program_service import GetTimeout
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import ServerError, json_response
from sglang.srt.web.exchange.event_stream import respond, unless_gone
from sglang.srt.web.exchange.json_body import read_body, read_optional_body
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response


async def open_session(state: ServerState, request: Request) -> Response:
    """Open a session. Submissions in one session may read each other's values."""
    await read_optional_body(request, OpenProgramSession, state.body_limit)
    session = state.programs.sessions.open(CALLER.get().tenant)
    timeout = state.config.applications.program_session_timeout
    return json_response(ProgramSessionReply(session.id, timeout))


async def close_session(state: ServerState, request: Request) -> Response:
    """End a session: cancel its running calls, and drop its values."""
    sessions = state.programs.sessions
    sessions.close(sessions.find(CALLER.get().tenant, request.path_params["session_id"]))
    return json_response({"status": "ok"})


async def submit(state: ServerState, request: Request) -> Response:
    """Run a program. Answer at once with the ids of its variables, or with a stream of events."""
    body = await read_body(request, SubmitBody, state.body_limit)
    session, run = await state.programs.submit(body, CALLER.get())
    reply = state.programs.reply(session, run)
    if not body.stream:
        return json_response(reply)
    events = state.programs.events(session, run, bool(body.grown))
    return await respond(request, _named(reply, events))


async def _named(
    reply: SubmittedReply, events: AsyncGenerator[Any, None]
) -> AsyncGenerator[Any, None]:
    """Yield the ids of a submission, then its events."""
    async with aclosing(events):
        yield reply
        async for event in events:
            yield event


async def get_value(state: ServerState, request: Request) -> Response:
    """Wait for the value of a variable and return it, or stream the events of a submission."""
    body = await read_body(request, GetBody, state.body_limit)
    caller, programs = CALLER.get(), state.programs
    if body.stream and body.timeout is not None:
        raise RequestError(
            f"timeout is {body.timeout:g} and stream is true; a stream has no timeout. Leave one "
            "of them out.",
            "timeout",
        )
    if body.submission_id is not None:
        if not body.stream or body.semantic_var_id is not None:
            raise RequestError(
                "submission_id is given for its events: set stream to true, and leave "
                "semantic_var_id out.",
                "submission_id",
            )
        session = programs.sessions.find(caller.tenant, body.session_id)
        run = session.run(body.submission_id)
        return await respond(request, programs.events(session, run, bool(body.grown)))
    if body.stream:
        return await respond(request, programs.stream(body, caller))
    try:
        value = await unless_gone(request, programs.get(body, caller))
    except GetTimeout as error:
        raise ServerError("request_timeout", str(error)) from None
    return json_response(ValueReply(value, "ready"))


async def set_value(state: ServerState, request: Request) -> Response:
    """Set a variable that no call sets: an input, or the result of a client's tool."""
    body = await read_body(request, SetBody, state.body_limit)
    state.programs.set(body, CALLER.get())
    return json_response({"status": "ok"})


async def cancel(state: ServerState, request: Request) -> Response:
    """Cancel a variable and the steps that only it needs, or a whole submission."""
    body = await read_body(request, CancelBody, state.body_limit)
    return json_response(CancelledReply(state.programs.cancel(body, CALLER.get())))
