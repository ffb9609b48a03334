"""Probes of an orchestrator, and the drain.

A probe needs no key, since an orchestrator would have to keep it in the description of its
containers; its answer says nothing about requests.
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
    """200 when the model is loaded. Before that the port refuses connections."""
    return json_response({"status": "ok"})


async def liveness_probe(state: ServerState, request: Request) -> Response:
    """200 while the process needs no restart: a lost or silent engine is replaced by the server
    itself. 503 where the engine's steps do not come and no watchdog ends it
    (`--watchdog-timeout 0`)."""
    watched = state.config.operations.watchdog_timeout > 0
    if not watched and state.runtime.completion.engines.stalled:
        raise ServerError("engine_stalled", "The engine makes no progress.")
    return json_response({"status": "ok"})


async def readiness_probe(state: ServerState, request: Request) -> Response:
    """200 while a new request would be taken: the engine is there and its steps come, the server
    does not drain, and its queue is not full."""
    try:
        await health(state, request)
        state.runtime.admit(1)
    except EngineLost as error:
        raise ServerError("engine_lost", "The engine is started again.") from error
    except ServerError as error:
        if error.code == "engine_stalled":
            raise ServerError("engine_stalled", "The engine makes no progress.") from error
        raise
    except RequestError as error:
        raise ServerError("overloaded", "The queue is full (--max-queued-requests).") from error
    return json_response({"status": "ok"})


async def begin_drain(state: ServerState, request: Request) -> Response:
    """Take no new request; those that are open may take `--drain-timeout` seconds. The server goes
    on to answer probes, and ends at a signal. A drain that has begun goes on as it is."""
    state.drain.begin()
    return json_response(state.drain.status())


async def drain_status(state: ServerState, request: Request) -> Response:
    """Whether the server drains, how many requests are open, and the seconds that they still
    have."""
    return json_response(state.drain.status())
