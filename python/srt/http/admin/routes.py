"""Routes about the server itself: health, information, metrics, models, cache, aborts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import ints
from sglang.srt.http.exchange.error_replies import ServerError, json_response
from sglang.srt.http.exchange.event_stream import unless_gone
from sglang.srt.http.exchange.json_body import read_body, read_optional_body
from sglang.srt.http.service import Service
from sglang.srt.program.ask import CONSTRAINTS, Ask
from sglang.srt.program.completion import Completion, EngineLost
from sglang.srt.program.request_error import RequestError
from sglang.srt.runtime.caller import current
from sglang.srt.runtime.sessions import CloseSessionBody, OpenSessionBody
from starlette.requests import Request
from starlette.responses import Response

log = logging.getLogger("sglang.server")

PROBE_SECONDS = 20.0  # how long /health_generate waits for a token


async def health(service: Service, request: Request) -> Response:
    """200 while requests are taken and the engine's steps come."""
    if service.completion.lost is not None:
        raise service.completion.lost.again()
    if stalled := service.completion.client.stalled:
        raise ServerError("engine_stalled", f"{stalled}.")
    if service.draining:
        raise ServerError("draining", "The server is shutting down.")
    return json_response({"status": "ok"})


async def health_generate(service: Service, request: Request) -> Response:
    """200 when one token was generated."""
    if (await statistics(service))["paused"]:
        raise ServerError("paused", "Generation is paused; POST /continue_generation.")
    await unless_gone(request, probe(service.completion))
    return json_response({"status": "ok"})


async def probe(completion: Completion) -> None:
    """Draw one token, or compute one where the model writes none. Raises EngineLost, also where it
    does not come in ``PROBE_SECONDS``."""
    start = completion.tokenizer.bos_id or 0
    new = 1 if completion.info.purpose == "generate" else 0
    sampling = SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True)
    try:
        await asyncio.wait_for(completion.generate(Ask(ints([start]), sampling)), PROBE_SECONDS)
    except asyncio.TimeoutError as error:
        raise EngineLost(f"no token in {PROBE_SECONDS:.0f} s") from error


async def model_info(service: Service, request: Request) -> Response:
    info, model = service.info, service.config.model
    return json_response(
        {
            "model_path": info.model_path,
            "tokenizer_path": model.tokenizer_path or info.model_path,
            "served_model_name": service.model_name,
            "is_generation": info.purpose == "generate",
            "constraints": CONSTRAINTS,
            "placeholders": service.placeholders,
            **msgspec.to_builtins(info),
        }
    )


async def server_info(service: Service, request: Request) -> Response:
    """Settings (without keys), the engine's facts, and its statistics of this moment."""
    stats = await statistics(service)
    return json_response(
        {
            **service.config.public(),
            **msgspec.to_builtins(service.info),
            "model_path": service.info.model_path,
            "served_model_name": service.model_name,
            "open_requests": service.open_requests,
            "pending": service.completion.pending,
            "stats": stats,
            "internal_states": [stats],
        }
    )


async def statistics(service: Service) -> dict[str, Any]:
    """The engine's counters and gauges. Raises as ``Service.control`` does."""
    return (await service.control("stats")).data


async def metrics(service: Service, request: Request) -> Response:
    """Counters are served even when the engine is gone; gauges stay while it is silent."""
    try:
        service.metrics.set_gauges(await statistics(service))
    except EngineLost:
        service.metrics.set_gauges({})
    except ServerError as error:
        log.warning("metrics: %s", error.message)
    return Response(service.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def models(service: Service, request: Request) -> Response:
    return json_response({"object": "list", "data": list(_cards(service))})


async def model(service: Service, request: Request) -> Response:
    name = request.path_params["name"]
    card = next((card for card in _cards(service) if card["id"] == name), None)
    if card is None:
        raise RequestError(
            f"There is no model {name!r}; this server has {service.model_name!r}.",
            "model",
            "not_found",
        )
    return json_response(card)


def _cards(service: Service) -> Iterator[dict[str, Any]]:
    """Of the model and its adapters: OpenAI's four fields, and what other servers add to them."""
    model = {
        "id": service.model_name,
        "object": "model",
        "created": service.started,
        "owned_by": "sglang",
        "root": service.info.model_path,
        "parent": None,
        "max_model_len": service.info.context_length,
    }
    yield model
    for name, (info, created) in service.adapters.known.items():
        yield {**model, "id": name, "created": created, "root": info.path,
               "parent": service.model_name}  # fmt: skip


async def flush_cache(service: Service, request: Request) -> Response:
    reply = await service.control("flush")
    if not reply.ok:
        raise ServerError("busy", f"The cache was not flushed: {reply.message}.")
    return json_response({"success": True, "message": "The cache is empty.", **reply.data})


async def load(service: Service, request: Request) -> Response:
    """How many requests there are, and the tokens that they hold: for routers."""
    stats = await statistics(service)
    waiting = int(stats["waiting"]) + int(stats["compiling"])
    free = stats["free_tokens"] + stats["evictable_tokens"]
    return json_response(
        [
            {
                "dp_rank": 0,
                "num_reqs": int(stats["running"]) + waiting,
                "num_waiting_reqs": waiting,
                "num_tokens": int(stats["total_tokens"] - free),
            }
        ]
    )


class PauseBody(msgspec.Struct):
    """``mode``: "abort" ends all requests, "in_place" keeps them with their memory, "retract" takes
    the memory too. What comes in waits in every mode."""

    mode: Literal["abort", "in_place", "retract"] = "abort"


async def pause_generation(service: Service, request: Request) -> Response:
    body = await read_optional_body(request, PauseBody, service.body_limit)
    await service.control("retract" if body.mode == "retract" else "pause")
    if body.mode == "abort":
        service.abort()
    return json_response({"status": "ok", "message": "Generation is paused."})


async def continue_generation(service: Service, request: Request) -> Response:
    await service.control("continue")
    return json_response({"status": "ok", "message": "Generation continues."})


async def open_session(service: Service, request: Request) -> Response:
    body = await read_optional_body(request, OpenSessionBody, service.body_limit)
    return json_response(service.sessions.open(body))


async def close_session(service: Service, request: Request) -> Response:
    body = await read_body(request, CloseSessionBody, service.body_limit)
    return json_response({"status": "ok", "closed": service.sessions.close(body.session_id)})


class AbortBody(msgspec.Struct):
    rid: str | list[str] | None = None
    abort_all: bool = False


async def abort_request(service: Service, request: Request) -> Response:
    """By ``rid``, or all. What is aborted ends with finish reason "abort"."""
    body = await read_optional_body(request, AbortBody, service.body_limit)
    if not body.rid and not body.abort_all:
        raise RequestError("Give rid, or abort_all: true.", "rid")
    caller = current.get()
    owner = None if caller.admin else caller.tenant
    if body.abort_all and owner == "":
        raise ServerError("forbidden", "abort_all needs the admin's key, or a key of one's own.")
    if body.abort_all:
        count = service.abort(owner=owner)
    else:
        rids = [body.rid] if isinstance(body.rid, str) else body.rid or []
        count = sum(service.abort(rid, owner) for rid in dict.fromkeys(rids))
    return json_response({"success": True, "aborted": count})
