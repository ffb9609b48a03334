"""OTLP: conversion of a trace to OpenTelemetry spans, and of these to OTLP's JSON.

Names follow the semantic conventions for generative AI, like the server's own spans
(docs/operations.md). Spans contain no text of prompts or answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sglang.run.trace_record import TraceRecord
from sglang.version import __version__
from sglang.views.timeline.trace_view import view_of
from sglang.views.timeline.verify import NODES

INTERNAL, CLIENT = 1, 3  # kinds of spans
ERROR = 2  # status code of an error; other spans leave the status unset
Object = dict[str, Any]
USAGE = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
# Attributes with their types: some stores refuse an attribute whose type changes.
SAMPLING = {
    "max_new_tokens": ("gen_ai.request.max_tokens", int), "seed": ("gen_ai.request.seed", int),
    "temperature": ("gen_ai.request.temperature", float), "top_p": ("gen_ai.request.top_p", float),
    "n": ("gen_ai.request.choice.count", int),
}  # fmt: skip
SECONDS = {
    "queue": "gen_ai.server.time_in_queue", "prefill": "gen_ai.server.time_in_prefill",
    "decode": "gen_ai.server.time_in_decode",
}  # fmt: skip


@dataclass
class OtelSpan:
    """One span. Times: wall clock, in nanoseconds. ``message``: the error of a failed span."""

    number: int
    parent: int | None
    name: str
    kind: int
    begin: int
    end: int
    failed: bool
    message: str
    attributes: Object = field(default_factory=dict)


def otel_spans(trace: TraceRecord) -> Iterator[OtelSpan]:
    """Yield the spans of runs, nodes and requests; parents before their children."""
    view = view_of(trace)
    lanes = {lane["number"]: lane for lane in view["lanes"]}

    def made(part: Object, parent: int | None, name: str, kind: int, about: Object) -> OtelSpan:
        begin, end = (round((trace.started + part[at]) * 1e9) for at in ("begin", "end"))
        failed = part["status"] != "ok"
        if failed:
            about["error.type"] = part["error"].partition(":")[0] or part["status"]
        about = {key: _sendable(value) for key, value in about.items()}
        return OtelSpan(
            part["number"], parent, _sendable(name), kind, begin, end, failed,
            _sendable(part["error"]), about,
        )  # fmt: skip

    for group in view["groups"]:
        about: Object = {
            "gen_ai.operation.name": "invoke_workflow",
            "sglang.program": group["name"],
        }
        yield made(group, group["parent"], f"program {group['name']}", INTERNAL, about)
    nodes = {span["number"]: span for span in view["spans"] if span["kind"] in NODES}
    for node in nodes.values():
        lane = lanes[node["lane"]]
        about = {"sglang.lane": lane["label"], "sglang.variable": node["name"]}
        if node["source"]:
            file, _, line = node["source"].rpartition(":")
            about |= {"code.file.path": file, "code.line.number": int(line)}
        name = f"{node['kind']} {node['name']}".strip()
        yield made(node, lane["group"], name, INTERNAL, about)
    for span in view["spans"]:
        if span["kind"] == "request":
            about = _request(span, nodes[span["parent"]])
            name = f"text_completion {span['name']}"
            yield made(span, span["parent"], name, CLIENT, about)


def _sendable(value: Any) -> Any:
    """Return a text, or texts, with lone surrogates replaced, which UTF-8 cannot encode."""
    if isinstance(value, list):
        return [_sendable(item) for item in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _request(span: Object, node: Object) -> Object:
    data, sampling = span["data"], node["data"].get("sampling", {})
    about: Object = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "sglang" if "scheduled" in data else span["name"],
    }
    about |= {name: of(sampling[ours]) for ours, (name, of) in SAMPLING.items() if ours in sampling}
    about |= {name: data[ours] for ours, name in USAGE.items() if ours in data}
    if data.get("finish"):
        about["gen_ai.response.finish_reasons"] = data["finish"].split(", ")
    for phase, begin, end in span["phases"]:
        if phase in SECONDS:
            about[SECONDS[phase]] = end - begin
    if "cost" in span:
        about["sglang.cost"] = span["cost"]
    return about


def otlp_json(trace: TraceRecord) -> Object:
    """Return an ExportTraceServiceRequest as JSON, the body for a collector's /v1/traces."""
    spans = [
        {
            "traceId": trace.trace_id,
            "spanId": f"{span.number:016x}",
            **({} if span.parent is None else {"parentSpanId": f"{span.parent:016x}"}),
            "name": span.name,
            "kind": span.kind,
            "startTimeUnixNano": str(span.begin),
            "endTimeUnixNano": str(span.end),
            "attributes": _attributes(span.attributes),
            "status": {"code": ERROR, "message": span.message} if span.failed else {},
        }
        for span in otel_spans(trace)
    ]
    resource = {"attributes": _attributes({"service.name": "sglang-program"})}
    scope = {"name": "sglang", "version": __version__}
    return {
        "resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]
    }


def _attributes(values: Object) -> list[Object]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> Object:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits are text in the JSON of protocol buffers
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
