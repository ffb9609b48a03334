"""Tracing: one OpenTelemetry span for each POST, sent by OTLP over HTTP.

A ``traceparent`` header makes the span a part of the caller's trace. Names follow the semantic
conventions for generative AI. A span contains no text of a prompt or an answer. The extra ``otel``
installs the packages; their environment variables ``OTEL_*`` (headers, sampler, service name)
apply.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sglang.srt.web.telemetry.request_record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span as OtelSpan

PATH = "/v1/traces"
CLOSE_SECONDS = 3.0  # most seconds to send the remaining spans at the end
_OPERATIONS = {
    "/generate": "text_completion", "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat", "/v1/messages": "chat", "/v1/responses": "chat",
    "/v1/embeddings": "embeddings", "/encode": "embeddings",
    "/v1/score": "rerank", "/score": "rerank",
    "/v1/rerank": "rerank", "/v2/rerank": "rerank", "/rerank": "rerank",
}  # fmt: skip
"""``gen_ai.operation.name`` by route. Other routes do not call the model."""


class TracingError(ValueError):
    """Spans cannot be sent: a package is missing, or the endpoint is no URL."""


class Tracing:
    """Factory of spans."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("sglang")
        self._extract = TraceContextTextMapPropagator().extract

    def begin(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan | None:
        """Begin the span of a request; return None if the request is not a POST."""
        if method != "POST":
            return None
        from opentelemetry.trace import SpanKind

        names = (b"traceparent", b"tracestate")
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers
                   if name in names}  # fmt: skip
        span = self._tracer.start_span("request", self._extract(carrier), SpanKind.SERVER)
        return RequestSpan(span)

    def close(self) -> None:
        """Send the remaining spans, for at most ``CLOSE_SECONDS``."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


class RequestSpan:
    """The span of one HTTP request."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    def end(self, found: RequestRecord, model: str) -> None:
        """End the span with the facts of ``found``. ``model``: name of the served model."""
        from opentelemetry.trace import StatusCode

        span, operation = self._span, _OPERATIONS.get(found.route)
        span.update_name(f"{operation} {model}" if operation else f"{found.method} {found.route}")
        attributes = _attributes(found)
        if operation:
            attributes |= {"gen_ai.operation.name": operation, **_requested(found, model)}
        for name, value in attributes.items():
            span.set_attribute(name, value)
        if found.status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()


def _attributes(found: RequestRecord) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "http.request.method": found.method,
        "http.route": found.route,
        "http.response.status_code": found.status,
        "sglang.request.id": found.request_id,
    }
    if found.status >= 400:
        attributes["error.type"] = str(found.status)
    return attributes


def _requested(found: RequestRecord, model: str) -> dict[str, Any]:
    """Return the attributes of a request that uses the model."""
    attributes: dict[str, Any] = {
        "gen_ai.provider.name": "sglang",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
    }
    if found.response_id:
        attributes["gen_ai.response.id"] = found.response_id
    if found.requests:
        sampling = found.requests[0].sampling
        attributes |= {
            "gen_ai.request.max_tokens": sampling.max_new_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.choice.count": sum(request.sampling.n for request in found.requests),
        }
        if sampling.seed is not None:
            attributes["gen_ai.request.seed"] = sampling.seed
    if found.requests or found.prompt_tokens:
        attributes |= {
            "gen_ai.usage.input_tokens": found.prompt_tokens,
            "gen_ai.usage.output_tokens": found.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": found.cached_tokens,
            "gen_ai.response.finish_reasons": sorted(found.finishes),
        }
    return attributes | _times(found)


def _times(found: RequestRecord) -> dict[str, float]:
    """Return the seconds in the queue, to the first token, from the queue to the first token, and
    from the first token to the end; {} without a token."""
    if found.first is None:
        return {}
    first, queued = found.first - found.started, found.queued or 0.0
    return {
        "gen_ai.server.time_in_queue": queued,
        "gen_ai.server.time_to_first_token": first,
        "gen_ai.server.time_in_prefill": max(0.0, first - queued),
        "gen_ai.server.time_in_decode": max(0.0, found.ended - found.first),
    }


def connect(endpoint: str) -> Tracing:
    """Return a Tracing that sends spans to ``endpoint``, a URL with ``PATH`` as its default path.
    Raises TracingError."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TracingError(
            f"--otlp-traces-endpoint is {endpoint!r}; give a URL such as "
            f"http://localhost:4318{PATH}"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingError(
            "--otlp-traces-endpoint needs more: "
            f"pip install -e '.[otel]' in the project's folder ({error})"
        ) from error
    if parts.path in ("", "/"):
        endpoint = parts._replace(path=PATH).geturl()
    return processed(BatchSpanProcessor(OTLPSpanExporter(endpoint)))


def processed(processor: SpanProcessor) -> Tracing:
    """Return a Tracing that sends spans to this processor."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "sglang"}
    provider = TracerProvider(resource=Resource.create(name), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return Tracing(provider)
