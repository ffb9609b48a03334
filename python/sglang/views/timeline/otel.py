"""OTel: sends a trace with OpenTelemetry's SDK. The packages are those of the extra ``otel``."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from sglang.errors import lacking
from sglang.run.trace_record import TraceRecord
from sglang.views.timeline.otlp import CLIENT, OtelSpan, otel_spans

PATH = "/v1/traces"


def export(trace: TraceRecord, to: Any) -> None:
    """Send a trace. ``to``: URL of a collector (default path: ``PATH``), or a span processor, which
    stays open. Raises Unsupported without the packages, ValueError for another ``to``."""
    url = _checked(to)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    except ImportError as error:
        raise lacking("OpenTelemetry", "otel", error) from error

    class Ids(RandomIdGenerator):
        """Source of span ids: the trace's own numbers, to which the servers' spans refer."""

        number = 0

        def generate_span_id(self) -> int:
            return self.number

        def generate_trace_id(self) -> int:
            return int(trace.trace_id, 16)

    name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "sglang-program"}
    ids = Ids()
    provider = TracerProvider(
        resource=Resource.create(name), id_generator=ids, shutdown_on_exit=False
    )
    processor = to if url is None else BatchSpanProcessor(OTLPSpanExporter(url))
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("sglang")
    for span in otel_spans(trace):
        ids.number = span.number
        _send(tracer, span, int(trace.trace_id, 16))
    if url is not None:
        provider.shutdown()


def _send(tracer: Any, span: OtelSpan, trace_id: int) -> None:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        SpanKind,
        StatusCode,
        TraceFlags,
        set_span_in_context,
    )

    context = Context()  # empty, so that the caller's current span does not become the parent
    if span.parent is not None:
        parent = SpanContext(trace_id, span.parent, False, TraceFlags(TraceFlags.SAMPLED))
        context = set_span_in_context(NonRecordingSpan(parent), context)
    kind = SpanKind.CLIENT if span.kind == CLIENT else SpanKind.INTERNAL
    made = tracer.start_span(
        span.name, context, kind, attributes=span.attributes, start_time=span.begin
    )
    if span.failed:
        made.set_status(StatusCode.ERROR, span.message)
    made.end(span.end)


def _checked(to: Any) -> str | None:
    """Return the URL, None for a processor. Raises ValueError."""
    if not isinstance(to, str):
        if not hasattr(to, "on_end"):
            raise ValueError(f"{to!r:.60} is neither the URL of a collector nor a span processor")
        return None
    parts = urlsplit(to)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{to!r} is no URL of a collector; give http://localhost:4318{PATH}")
    return parts._replace(path=PATH).geturl() if parts.path in ("", "/") else to
