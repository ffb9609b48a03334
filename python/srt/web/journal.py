"""Journal: the end of each HTTP request, written to the metrics, the trace and the log.

With ``--log-requests`` each request gets one log line when it has ended. Contents by
``--log-requests-level``: 0 neither prompts, parameters nor answers; 1 the sampling parameters; 2
also the beginnings of prompts and texts; 3 whole prompts and texts. A request with ``no_logs`` is
logged as with level 0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.route import EVENTS, LINES
from sglang.srt.web.server_state import ServerState
from sglang.srt.web.telemetry import request_record as record
from sglang.srt.web.telemetry.request_record import RequestRecord
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("sglang.requests")

OTHER = "other"  # route label of unknown paths
QUIET = ("/health", "/metrics", "/livez", "/readyz", "/startupz")
"""Paths that are polled continuously, so only their errors are logged."""

STREAMS = frozenset({EVENTS.encode(), LINES.encode()})
BEGINNING = 256  # characters of a text, or tokens of a prompt, that level 2 logs


class Journal:
    """The outermost ASGI middleware. ``paths``: path templates of all routes."""

    def __init__(self, app: ASGIApp, state: ServerState, paths: Collection[str]) -> None:
        self._app, self._state, self._paths = app, state, frozenset(paths)
        self._lines = state.config.server.log_requests
        self._level = state.config.operations.log_requests_level if self._lines else 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        found = RequestRecord(scope["method"], OTHER, keep=self._level >= 2)
        tracing = self._state.tracing
        span = None if tracing is None else tracing.begin(scope["method"], scope["headers"])
        before = record.current.set(found)
        try:
            with self._state.metrics.open_streams() as streaming:
                await self._app(scope, receive, _watched(send, found, streaming))
        except BaseException:
            found.status = found.status or 500
            raise
        finally:
            record.current.reset(before)
            found.ended = time.monotonic()
            found.route = self._route(scope)
            self._state.metrics.answered(found)
            if span is not None:
                span.end(found, self._state.runtime.model_name)
            if self._lines and (found.route not in QUIET or found.status >= 400):
                log.info("request", extra={"fields": self._fields(found)})

    def _route(self, scope: Scope) -> str:
        """Return the path template of a request, also of one that was refused before routing."""
        if "route" in scope:
            return str(scope["route"].path)
        return scope["path"] if scope["path"] in self._paths else OTHER

    def _fields(self, found: RequestRecord) -> dict[str, Any]:
        fields = facts(found)
        if found.private:
            return fields
        if self._level >= 1 and found.requests:
            fields["parameters"] = [
                self._parameters(request.sampling) for request in found.requests
            ]
        if self._level >= 2 and found.requests:
            most = None if self._level >= 3 else BEGINNING
            prompts = (
                self._state.runtime.tokenizer.decode(request.prompt[:most])
                for request in found.requests
            )
            fields["inputs"] = [text[:most] for text in prompts]
            fields["outputs"] = [output.text[:most] for _, output in found.outputs]
        return fields

    def _parameters(self, sampling: SamplingParams) -> Any:
        """Return the sampling parameters that were set, with texts cut below level 3."""
        plain = msgspec.to_builtins(sampling, str_keys=True)
        return plain if self._level >= 3 else _beginnings(plain)


def facts(found: RequestRecord) -> dict[str, Any]:
    """Return the facts of a request that has ended, without its texts."""
    fields: dict[str, Any] = {
        "id": found.request_id,
        "method": found.method,
        "route": found.route,
        "status": found.status,
        "tenant": found.tenant,
        "response_id": found.response_id,
        "seconds": round(found.seconds, 6),
    }
    if found.gone:
        fields["client_gone"] = True
    if found.requests:
        fields["prompts"] = len(found.requests)
    if found.requests or found.prompt_tokens:
        fields["prompt_tokens"] = found.prompt_tokens
        fields["cached_tokens"] = found.cached_tokens
        fields["completion_tokens"] = found.completion_tokens
    if found.finishes:
        fields["finish_reasons"] = dict(found.finishes)
    if found.queued is not None:
        fields["queue_seconds"] = round(found.queued, 6)
    if found.first is not None:
        fields["first_token_seconds"] = round(found.first - found.started, 6)
    return {name: value for name, value in fields.items() if value != ""}


def _beginnings(value: Any) -> Any:
    """Return plain data with all texts cut to ``BEGINNING`` characters."""
    if isinstance(value, str):
        return value[:BEGINNING]
    if isinstance(value, dict):
        return {key: _beginnings(item) for key, item in value.items()}
    return [_beginnings(item) for item in value] if isinstance(value, (list, tuple)) else value


def _watched(send: Send, found: RequestRecord, streaming: Any) -> Send:
    """Wrap ``send`` to record status, request id, tenant, and whether the answer was sent whole.
    ``streaming`` is called once if the answer is a stream."""

    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            sender = CALLER.get()
            found.request_id, found.tenant = sender.request, sender.tenant
            found.status = message["status"]
            if any(
                name == b"content-type" and value.partition(b";")[0] in STREAMS
                for name, value in message["headers"]
            ):
                streaming()
        elif message["type"] == "http.response.body":
            found.whole = not message.get("more_body", False)
        await send(message)

    return watched
