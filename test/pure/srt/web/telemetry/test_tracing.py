"""Tracing: a span a request, under the names of the semantic conventions, with no text in it."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.http_server import Served, serve_text
from helpers.paths import PYTHON
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sglang.srt.web.telemetry import request_tracing as tracing
from sglang.srt.web.telemetry.request_tracing import TracingError, connect, processed

SECRET = "tell nobody"
GREEDY = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


@pytest.fixture
def exporter(served: Served) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    served.state.tracing = processed(SimpleSpanProcessor(exporter))
    yield exporter
    served.state.tracing = None


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    """The one span; it ends after the answer is out."""
    deadline = time.monotonic() + 60
    while not exporter.get_finished_spans():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (span,) = exporter.get_finished_spans()
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_a_span(served: Served, exporter: InMemorySpanExporter, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 6, "seed": 7,
            "temperature": 0.5, "top_p": 0.9, "ignore_eos": True, "stream": stream}  # fmt: skip
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    reply = served.client.post("/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200
    span = only(exporter)
    found: dict[str, Any] = dict(span.attributes or {})
    assert span.name == "chat sglang-tiny"
    assert span.kind == SpanKind.SERVER
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.model"] == "sglang-tiny"
    assert found["gen_ai.request.max_tokens"] == 6
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.request.top_p"] == 0.9
    assert found["gen_ai.request.seed"] == 7
    assert found["gen_ai.usage.output_tokens"] == 6
    assert found["gen_ai.usage.input_tokens"] > 6
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    assert found["gen_ai.response.id"] in reply.text
    assert found["http.response.status_code"] == 200
    assert found["http.route"] == "/v1/chat/completions"
    assert found["sglang.request.id"] == "mine"
    first, queued = found["gen_ai.server.time_to_first_token"], found["gen_ai.server.time_in_queue"]
    assert 0 <= queued <= first
    whole = first + found["gen_ai.server.time_in_decode"]
    assert span.end_time is not None
    assert span.start_time is not None
    assert whole == pytest.approx((span.end_time - span.start_time) / 1e9, abs=0.05)
    assert SECRET not in span.to_json()


def test_an_error_is_a_span_too(served: Served, exporter: InMemorySpanExporter) -> None:
    served.client.post("/generate", json={"text": SECRET, "sampling_params": {"top_p": 9}})
    span = only(exporter)
    found = dict(span.attributes or {})
    assert found["gen_ai.operation.name"] == "text_completion"
    assert (found["http.response.status_code"], found["error.type"]) == (400, "400")
    assert span.status.status_code == StatusCode.UNSET  # the client's fault, not the server's
    assert SECRET not in span.to_json()


def test_what_asks_for_nothing_is_no_span(served: Served, exporter: InMemorySpanExporter) -> None:
    for path in ("/health", "/metrics", "/v1/models"):
        served.client.get(path)
    served.client.post("/generate", json={"text": "a", "sampling_params": GREEDY})
    assert only(exporter).attributes is not None


def test_what_asks_no_model_names_none(served: Served, exporter: InMemorySpanExporter) -> None:
    served.client.post("/tokenize", json={"prompt": "a"})
    span = only(exporter)
    assert span.name == "POST /tokenize"
    assert not [name for name in span.attributes or {} if name.startswith("gen_ai.")]


@pytest.mark.parametrize("value", ["nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 99])
def test_a_broken_traceparent_begins_a_trace(
    served: Served, exporter: InMemorySpanExporter, value: str
) -> None:
    headers = {"traceparent": value}
    body = {"text": "a", "sampling_params": GREEDY}
    assert served.client.post("/generate", json=body, headers=headers).status_code == 200
    assert only(exporter).parent is None


class Collector(http.server.ThreadingHTTPServer):
    """Takes what is sent to it; ``status`` is its answer."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[str] = []
        self.services: set[str] = set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                    for attribute in resource.resource.attributes:
                        if attribute.key == "service.name":
                            outer.services.add(attribute.value.string_value)
                    for scope in resource.scope_spans:
                        outer.spans += [span.name for span in scope.spans]
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


def test_a_collector_gets_them(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, end = threading.Semaphore(0), tracing.RequestSpan.end
    monkeypatch.setattr(
        tracing.RequestSpan, "end", lambda self, *given: (end(self, *given), ended.release())
    )
    with Collector() as collector:
        served.state.tracing = connect(collector.url)
        for _ in range(3):
            served.client.post("/generate", json={"text": "a", "sampling_params": GREEDY})
        assert all(ended.acquire(timeout=60) for _ in range(3))
        served.state.tracing.close()
        served.state.tracing = None
        collector.shutdown()
        assert collector.spans == ["text_completion sglang-tiny"] * 3
        assert collector.services == {"sglang"}


@pytest.mark.parametrize("status", [None, 503])
def test_a_collector_that_is_down_holds_nobody_up(
    served: Served, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.5)
    collector = Collector(status or 500)
    url = collector.url
    if status is None:
        collector.shutdown()
        collector.server_close()
    served.state.tracing = connect(url)
    body = {"text": "a", "sampling_params": GREEDY}
    assert served.client.post("/generate", json=body).status_code == 200
    served.state.tracing.close()
    served.state.tracing = None
    if status is not None:
        collector.shutdown()
        collector.server_close()


def test_an_end_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.1)
    made, over, left = connect("http://localhost:4318"), threading.Event(), []
    shutdown = made._provider.shutdown
    monkeypatch.setattr(made._provider, "shutdown", lambda: left.append(over.wait(60)))
    made.close()
    assert not left
    over.set()
    shutdown()


@pytest.mark.parametrize(
    "url", ["localhost:4318", "grpc://localhost:4317", "/v1/traces", "http://"]
)
def test_an_endpoint_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(TracingError, match="give a URL such as"):
        connect(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingError, match=r"pip install -e '.\[otel\]'"):
        connect("http://localhost:4318")


def test_without_it_nothing_is_imported() -> None:
    code = (
        "import sys, sglang.srt.web.launch\n"  # the web framework imports the API where it is
        "heavy = ('opentelemetry.sdk', 'opentelemetry.exporter', 'google.protobuf', 'requests')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == "[]\n", done.stderr
