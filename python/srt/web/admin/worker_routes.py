"""Routes to list, add and remove engines of the server's fleet."""

from __future__ import annotations

import msgspec
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.fleet.engine_fleet import Fleet
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

MOST_SECONDS = 86400.0
MOST_CHARS = 256


class JoinBody(msgspec.Struct):
    """``url``: tcp://HOST:PORT of a standalone engine (``sglang engine``)."""

    url: str


class LeaveBody(msgspec.Struct):
    """``seconds``: time for the engine's requests to finish; the rest continue on other engines."""

    name: str
    seconds: float = 30.0


async def workers(state: ServerState, request: Request) -> Response:
    """Return the engines of this server, with their states and numbers of requests."""
    if state.fleet is not None:
        return json_response({"workers": state.fleet.shown()})
    completer = state.runtime.completion
    engine = {
        "name": "0",
        "state": "serving" if completer.lost is None else "lost",
        "pending": completer.pending,
        "routed": 0,
        "restarts": 0,
        "max_total_num_tokens": completer.info.capacity,
    }
    return json_response({"workers": [engine]})


async def add_worker(state: ServerState, request: Request) -> Response:
    """Connect to a standalone engine, and add it to the fleet."""
    body = await read_body(request, JoinBody, state.body_limit)
    if not body.url.startswith("tcp://") or len(body.url) > MOST_CHARS:
        raise RequestError(
            f"url is {body.url!r:.80}; it must be tcp://HOST:PORT of an engine that runs by itself "
            f"(sglang engine), at most {MOST_CHARS} characters.",
            "url",
        )
    await _fleet(state).join(body.url)
    return json_response({"workers": _fleet(state).shown()})


async def remove_worker(state: ServerState, request: Request) -> Response:
    """Remove an engine from the fleet. Its requests have ``seconds`` to finish; the rest continue
    on other engines. A standalone engine keeps running; an engine of this server ends."""
    body = await read_body(request, LeaveBody, state.body_limit)
    if not 0 <= body.seconds <= MOST_SECONDS:
        raise RequestError(
            f"seconds is {body.seconds}; it must be from 0 to {MOST_SECONDS:.0f}.", "seconds"
        )
    moved = await _fleet(state).leave(body.name, body.seconds)
    return json_response({"workers": _fleet(state).shown(), "moved": moved})


def _fleet(state: ServerState) -> Fleet:
    if state.fleet is None:
        raise RequestError(
            "This server has one engine, which cannot be changed.", code="unsupported"
        )
    return state.fleet
