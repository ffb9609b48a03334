"""Routes about the server itself: health, information, metrics, models, cache, aborts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.completion.completion_request import CONSTRAINTS
from sglang.srt.requests.completion.serving_engines import merged
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.sampling_defaults import sampling_defaults
from sglang.srt.runtime.supervisor import probe
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import ServerError, json_response
from sglang.srt.web.exchange.event_stream import unless_gone
from sglang.srt.web.exchange.json_body import read_optional_body
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

log = logging.getLogger("sglang.server")


async def health(state: ServerState, request: Request) -> Response:
    """Return 200 while the server takes requests and the engine makes progress."""
    if state.runtime.completion.lost is not None:
        raise state.runtime.completion.lost.again()
    if stalled := state.runtime.completion.engines.stalled:
        raise ServerError("engine_stalled", f"{stalled}.")
    if state.draining:
        raise ServerError("draining", "The server is shutting down.")
    return json_response({"status": "ok"})


async def health_generate(state: ServerState, request: Request) -> Response:
    """Return 200 after the engine has generated one token."""
    if (await statistics(state))["paused"]:
        raise ServerError("paused", "Generation is paused; POST /continue_generation.")
    await unless_gone(request, probe(state.runtime.completion))
    return json_response({"status": "ok"})


async def model_info(state: ServerState, request: Request) -> Response:
    info, model = state.runtime.info, state.config.model
    return json_response(
        {
            "model_path": info.model_path,
            "tokenizer_path": model.tokenizer_path or info.model_path,
            "served_model_name": state.runtime.model_name,
            "is_generation": info.purpose == "generate",
            "constraints": CONSTRAINTS,
            "scores_options": True,
            "placeholders": state.runtime.placeholders,
            "tool_format": state.runtime.tool_format.name,
            "default_sampling_params": sampling_defaults(state.runtime.tokenizer.path),
            **msgspec.to_builtins(info),
        }
    )


async def server_info(state: ServerState, request: Request) -> Response:
    """Return the settings (without keys), the engine's facts, and its current statistics."""
    replies = await state.runtime.control_each("stats")
    stats = merged(replies).data
    return json_response(
        {
            **state.config.public(),
            **msgspec.to_builtins(state.runtime.info),
            "model_path": state.runtime.info.model_path,
            "served_model_name": state.runtime.model_name,
            "open_requests": state.open_requests,
            "pending": state.runtime.completion.pending,
            "stats": stats,
            "internal_states": [reply.data for reply in replies.values()],
        }
    )


async def statistics(state: ServerState) -> dict[str, Any]:
    """Return the engine's counters and gauges. Raises the errors of ``EngineRuntime.control``."""
    return (await state.runtime.control("stats")).data


async def metrics(state: ServerState, request: Request) -> Response:
    """Return the metrics in Prometheus's text format. Without an engine, counters keep their values
    and gauges are 0. While the engine is silent, all values stay as they are."""
    try:
        replies = await state.runtime.control_each("stats")
        state.metrics.engine.read({name: reply.data for name, reply in replies.items()})
    except EngineLost:
        state.metrics.engine.read({})
    except RequestError as error:
        log.warning("metrics: %s", error.message)
    info, loaded = state.runtime.info, state.runtime.adapters.known
    state.metrics.gateway.read(info.page_size, info.capacity, info.max_loras_per_batch, loaded)
    programs, inferlets, batches = state.runtime.programs, state.inferlets, state.batches
    state.metrics.set_counts(
        state.runtime.parked.counts(),
        {} if programs is None else programs.counts(),
        state.programs.counts(),
        {} if inferlets is None else inferlets.counts(),
        {} if batches is None else batches.counts(),
    )
    return Response(state.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def models(state: ServerState, request: Request) -> Response:
    return json_response({"object": "list", "data": list(_cards(state))})


async def model(state: ServerState, request: Request) -> Response:
    name = request.path_params["name"]
    card = next((card for card in _cards(state) if card["id"] == name), None)
    if card is None:
        raise RequestError(
            f"There is no model {name!r}; this server has {state.runtime.model_name!r}.",
            "model",
            "not_found",
        )
    return json_response(card)


def _cards(state: ServerState) -> Iterator[dict[str, Any]]:
    """Yield the cards of the model and its adapters: OpenAI's four fields, and fields of other
    servers."""
    model = {
        "id": state.runtime.model_name,
        "object": "model",
        "created": state.started,
        "owned_by": "sglang",
        "root": state.runtime.info.model_path,
        "parent": None,
        "max_model_len": state.runtime.info.context_length,
    }
    yield model
    for name, (info, created) in state.runtime.adapters.known.items():
        yield {**model, "id": name, "created": created, "root": info.path,
               "parent": state.runtime.model_name}  # fmt: skip


async def flush_cache(state: ServerState, request: Request) -> Response:
    reply = await state.runtime.control("flush")
    if not reply.ok:
        raise ServerError("busy", f"The cache was not flushed: {reply.message}.")
    return json_response({"success": True, "message": "The cache is empty.", **reply.data})


async def load(state: ServerState, request: Request) -> Response:
    """Return for each engine the number of requests and of tokens in use, for routers."""
    replies = await state.runtime.control_each("stats")
    return json_response([_load_of(rank, replies[name].data) for rank, name in enumerate(replies)])


def _load_of(rank: int, stats: Mapping[str, Any]) -> dict[str, Any]:
    waiting = int(stats["waiting"]) + int(stats["compiling"])
    free = stats["free_tokens"] + stats["evictable_tokens"]
    return {
        "dp_rank": rank,
        "num_reqs": int(stats["running"]) + waiting,
        "num_waiting_reqs": waiting,
        "num_tokens": int(stats["total_tokens"] - free),
    }


class PauseBody(msgspec.Struct):
    """``mode``: "abort" ends all requests, "in_place" keeps them with their memory, "retract" keeps
    them and frees their memory. New requests wait in every mode."""

    mode: Literal["abort", "in_place", "retract"] = "abort"


async def pause_generation(state: ServerState, request: Request) -> Response:
    body = await read_optional_body(request, PauseBody, state.body_limit)
    await state.runtime.control("retract" if body.mode == "retract" else "pause")
    if body.mode == "abort":
        state.runtime.abort()
    return json_response({"status": "ok", "message": "Generation is paused."})


async def continue_generation(state: ServerState, request: Request) -> Response:
    await state.runtime.control("continue")
    return json_response({"status": "ok", "message": "Generation continues."})


class AbortBody(msgspec.Struct):
    rid: str | list[str] | None = None
    abort_all: bool = False


async def abort_request(state: ServerState, request: Request) -> Response:
    """Abort requests by ``rid``, or all. Each ends with finish reason "abort"."""
    body = await read_optional_body(request, AbortBody, state.body_limit)
    if not body.rid and not body.abort_all:
        raise RequestError("Give rid, or abort_all: true.", "rid")
    caller = CALLER.get()
    owner = None if caller.admin else caller.tenant
    if body.abort_all and owner == "":
        raise ServerError("forbidden", "abort_all needs the admin's key, or a tenant's own key.")
    if body.abort_all:
        count = state.runtime.abort(owner=owner)
    else:
        rids = [body.rid] if isinstance(body.rid, str) else body.rid or []
        count = sum(state.runtime.abort(rid, owner) for rid in dict.fromkeys(rids))
    return json_response({"success": True, "aborted": count})
