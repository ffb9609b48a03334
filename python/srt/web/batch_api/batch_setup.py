"""Start of a server's batch service. The routes' own handlers answer each request of a batch, as if
it had come over HTTP."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from sglang.srt.config import BatchesConfig
from sglang.srt.requests.completion.readout import ABORTED
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.batches.batch_input import InputLimits
from sglang.srt.runtime.batches.batch_runner import LineAnswer
from sglang.srt.runtime.batches.batch_service import BatchService, StorageLimits
from sglang.srt.runtime.batches.line_seats import LineSeats
from sglang.srt.runtime.caller import Caller
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import error_response
from sglang.srt.web.openai import completions, embeddings
from sglang.srt.web.openai.chat import routes as chat
from sglang.srt.web.openai.responses import routes as responses
from sglang.srt.web.route import Handler
from sglang.srt.web.server_state import ServerState
from sglang.srt.web.telemetry import request_record
from starlette.requests import Request

LOW = 1_000_000  # subtracted from the priority of every request of a batch
SWEEP = 3600.0  # seconds between two removals of expired files and batches

HANDLERS: Mapping[str, Handler] = {
    "/v1/chat/completions": chat.chat_completions,
    "/v1/completions": completions.completions,
    "/v1/embeddings": embeddings.embeddings,
    "/v1/responses": responses.create,
}


class _Refusal(msgspec.Struct):
    error: Any = None


@asynccontextmanager
async def batches_of(state: ServerState, config: BatchesConfig) -> AsyncIterator[None]:
    """Run the server's batches during the block, if the configuration has a directory for them.

    Raises OSError if the directory cannot be used.
    """
    if not config.batch_dir:
        yield
        return
    service = await asyncio.to_thread(_service, state, config)
    state.batches = service
    service.start()
    sweeping = asyncio.ensure_future(_swept(service))
    try:
        yield
    finally:
        state.batches = None
        sweeping.cancel()
        await service.close()


def _service(state: ServerState, config: BatchesConfig) -> BatchService:
    seats = LineSeats(config.batch_concurrency, room_of(state))
    return BatchService(
        Path(config.batch_dir).expanduser(),
        StorageLimits(config.batch_max_file_bytes, config.batch_max_bytes),
        InputLimits(config.batch_max_lines, state.body_limit),
        seats,
        answering(state),
    )


async def _swept(service: BatchService) -> None:
    while True:
        await asyncio.sleep(SWEEP)
        service.sweep()


def room_of(state: ServerState) -> Callable[[int], bool]:
    """Return a function of the number of running batch requests, which tells whether one more may
    begin. Batches use at most half of the engines' slots, and only while no other request waits."""
    runtime = state.runtime

    def room(running: int) -> bool:
        completion = runtime.completion
        if state.draining or completion.lost is not None or runtime.queue.waiting:
            return False
        seats = completion.engines.count * runtime.info.max_running_requests
        return running < max(1, seats // 2) and max(completion.pending, running) < seats

    return room


def answering(state: ServerState) -> Callable[[str, bytes, str], Awaitable[LineAnswer]]:
    """Return a function of URL, body and owner that answers one request."""

    async def answer(url: str, body: bytes, owner: str) -> LineAnswer:
        number, aborted = uuid.uuid4().hex, False
        record = request_record.RequestRecord("POST", url, number)
        # Each task has its own context, so these variables do not affect other requests.
        request_record.current.set(record)
        try:
            CALLER.set(_caller(state, owner, number))
            reply = await HANDLERS[url](state, _request(url, body))
        except Exception as error:
            reply = error_response(error)
            aborted = isinstance(error, RequestError) and error.message == ABORTED
        if aborted or record.finishes["abort"]:  # by a drain or a pause; the runner retries
            return LineAnswer(503, b"", number, "aborted")
        data = bytes(reply.body)
        return LineAnswer(reply.status_code, data, number, _code(reply.status_code, data))

    return answer


def _caller(state: ServerState, owner: str, number: str) -> Caller:
    """Return the owner of a batch as the caller of one of its requests, with a low priority. Raises
    RequestError."""
    caller = state.tenants.caller_of(owner, number)
    if caller is None:
        raise RequestError(
            f"The key {owner!r:.80} that this batch belongs to is gone.", code="invalid_api_key"
        )
    return replace(caller, priority=caller.priority - LOW)


def _code(status: int, body: bytes) -> str:
    if status == 200:
        return ""
    error = msgspec.json.decode(body, type=_Refusal).error
    return str(error.get("code", "")) if isinstance(error, dict) else ""


def _request(path: str, body: bytes) -> Request:
    """Return a request with its whole body, and a client that never disconnects."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": headers, "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    return Request(scope, receive)
