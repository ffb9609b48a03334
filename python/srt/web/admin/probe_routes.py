"""Probes of an orchestrator, and the drain.

A probe needs no API key, because an orchestrator would have to store the key in the description of
its containers. The answer of a probe reveals nothing about requests.
"""

from __future__ import annotations

from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.request_error import RequestError
from sglang.srt.web.admin.routes import health
from sglang.srt.web.exchange.error_replies import ServerError, json_response
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response


async def startup_probe(state: ServerState, request: Request) -> Response:
    """Return 200 once the model is loaded. Before that the port refuses connections."""
    return json_response({"status": "ok"})


async def liveness_probe(state: ServerState, request: Request) -> Response:
    """Return 200 while the process needs no restart. The server itself replaces a lost or silent
    engine. Return 503 if the engine makes no progress and there is no watchdog to end it
    (`--watchdog-timeout 0`)."""
    watched = state.config.operations.watchdog_timeout > 0
    if not watched and state.runtime.completion.engines.stalled:
        raise ServerError("engine_stalled", "The engine makes no progress.")
    return json_response({"status": "ok"})


async def readiness_probe(state: ServerState, request: Request) -> Response:
    """Return 200 while a new request would be taken: the engine makes progress, the server does not
    drain, and its queue is not full. Otherwise return 503."""
    try:
        await health(state, request)
        state.runtime.admit(1)
    except EngineLost as error:
        raise ServerError("engine_lost", "The engine is being restarted.") from error
    except ServerError as error:
        if error.code == "engine_stalled":
            raise ServerError("engine_stalled", "The engine makes no progress.") from error
        raise
    except RequestError as error:
        raise ServerError("overloaded", "The queue is full (--max-queued-requests).") from error
    return json_response({"status": "ok"})


async def begin_drain(state: ServerState, request: Request) -> Response:
    """Take no new requests from now on. Open requests may take `--drain-timeout` seconds. The
    server still answers probes, and ends at a signal. A drain that has begun is not changed."""
    state.drain.begin()
    return json_response(state.drain.status())


async def drain_status(state: ServerState, request: Request) -> Response:
    """Return whether the server drains, the number of open requests, and the seconds until their
    deadline."""
    return json_response(state.drain.status())
