"""Formats of a written trace: the page, Chrome's events, OpenTelemetry's spans, and the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.http_server import serve_text
from helpers.paths import PYTHON
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sglang.srt.cli import main
from sglang.srt.web.telemetry.request_tracing import processed
from sglang.views.timeline.chrome import _times
from sglang.views.timeline.timeline_page import embedded
from sglang.views.timeline.trace import Trace
from sglang.views.timeline.trace_formats import FORMATS, written

HOSTILE = "</script><script>document.title='owned'</script><!--<script>&amp;'\"\u2028\ud800$title"
SECRET = "tell nobody"


@sgl.function
def program(s: Any, topic: str) -> None:
    s += SECRET + topic + sgl.gen("plan", max_tokens=8, seed=3)
    forks = s.fork(2)
    forks += lambda i: f" {i}:" + sgl.gen("tip", max_tokens=8)
    forks.join()
    s += sgl.select("best", ["a", "b"])


@pytest.fixture(scope="module")
def trace() -> Trace:
    trace = Trace(prices={"input": 1, "output": 2})
    script = [f"{HOSTILE}", "one", "two", "b"]
    program.run(HOSTILE, backend=sgl.Mock(script, delay=0.001), trace=trace)
    return trace


class Elements(HTMLParser):
    """Start tags, and what stands in scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)


def test_texts_in_the_page_are_data_alone(trace: Trace) -> None:
    page = trace.to_html()
    assert "owned" in page
    found = Elements()
    found.feed(page)
    assert [tag for tag, _ in found.tags].count("script") == 2
    data, _ = found.scripts
    outputs = [
        output["text"]
        for span in json.loads(data)["spans"]
        for output in span["data"].get("outputs", ())
    ]
    assert HOSTILE in outputs
    for tag, attributes in found.tags:  # nothing is loaded
        assert not {"src", "srcset"} & set(attributes), tag
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"https?://", page.replace(data, ""))


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "\u2028", "&lt;", "\ud800"])
def test_embedded_json_ends_no_script(text: str) -> None:
    written = embedded({"a": text})
    assert not set("<>&\u2028\ud800") & set(written)
    assert json.loads(written) == {"a": text}


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def test_chrome_events_nest_on_every_thread(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "t.json", "chrome")
    found = json.loads((tmp_path / "t.json").read_text())
    threads: dict[tuple[int, int], list[Any]] = {}
    flows: dict[int, list[str]] = {}
    for event in found["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "ts"} <= set(event)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
        elif event["ph"] in "sf":
            flows.setdefault(event["id"], []).append(event["ph"])
        else:
            assert event["ph"] == "M"
    assert list(flows.values()) == [["s", "f"]] * 4  # two forks, two joins
    for (
        events
    ) in threads.values():  # as they are read: in whole nanoseconds, a stable sort by begin
        open_ends: list[int] = []
        for event in sorted(events, key=lambda one: nanoseconds(one["ts"])):
            begin = nanoseconds(event["ts"])
            end = begin + nanoseconds(event["dur"])
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)
    for event in found["traceEvents"]:  # a flow begins and ends in a span, else it is not shown
        if event["ph"] in "sf":
            assert any(
                one["ts"] <= event["ts"] < one["ts"] + one["dur"]
                for one in threads[event["pid"], event["tid"]]
            )
    names = [event["name"] for event in found["traceEvents"]]
    assert {"gen plan", "gen tip", "select best", "process_name"} <= set(names)


@given(st.lists(st.floats(0, 1e6), min_size=4, max_size=4).map(sorted))
def test_what_ends_together_does_so_in_chrome_too(marks: list[float]) -> None:
    first, second, third, last = marks

    def span(begin: float, end: float) -> tuple[int, int]:
        found = _times(begin, end)
        return nanoseconds(found["ts"]), nanoseconds(found["ts"]) + nanoseconds(found["dur"])

    whole, inside, after = span(first, last), span(second, last), span(second, third)
    assert whole[0] <= inside[0] == after[0]
    assert after[1] <= inside[1] == whole[1]
    assert span(third, last)[0] == after[1]


def test_otlp_json_is_what_a_collector_reads(trace: Trace, tmp_path: Path) -> None:
    from google.protobuf.json_format import ParseDict

    trace.save(tmp_path / "t.json", "otlp-json")
    text = (tmp_path / "t.json").read_text()
    assert SECRET not in text
    assert "owned" not in text
    data = json.loads(text)
    message = ParseDict(data, ExportTraceServiceRequest())
    (scope,) = message.resource_spans[0].scope_spans
    # Protocol buffers read an id in JSON as base64, where OTLP has hexadecimal digits.
    spans = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert len(scope.spans) == len(spans)
    known = {span["spanId"] for span in spans}
    assert len(known) == len(spans)
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert span.get("parentSpanId", span["spanId"]) in known
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    (root,) = [span for span in spans if "parentSpanId" not in span]
    assert root["name"] == "program program"
    assert all(span["status"] == {} for span in spans), "that all is well is not for us to say"


def test_attributes_have_one_type_however_they_were_given() -> None:
    kinds = set()
    for temperature in (0, 1, 0.5):
        trace = Trace()
        program.run("x", backend=sgl.Mock(), trace=trace, temperature=temperature, top_p=1)
        text = written(trace, "otlp-json")
        kinds |= set(re.findall(r'"gen_ai.request.(\w+)","value":{"(\w+)"', text))
    assert kinds == {
        ("temperature", "doubleValue"), ("top_p", "doubleValue"), ("seed", "intValue"),
        ("max_tokens", "intValue"),
    }  # fmt: skip


def test_the_servers_spans_are_children_of_the_requests(tmp_path: Path) -> None:
    ours, theirs = InMemorySpanExporter(), InMemorySpanExporter()
    with serve_text(tmp_path) as server:
        server.state.tracing = processed(SimpleSpanProcessor(theirs))
        backend = sgl.RuntimeEndpoint(f"http://127.0.0.1:{server.client.base_url.port}")
        with sgl.tracing(otel=SimpleSpanProcessor(ours)) as trace:
            program.run("x", backend=backend, ignore_eos=True)
        program.run("x", backend=backend, ignore_eos=True)  # not recorded, so without a parent
        backend.shutdown()
    spans: dict[int, Any] = {span.context.span_id: span for span in ours.get_finished_spans()}
    requests = {n for n, span in spans.items() if span.name.startswith("text_completion")}
    made: list[Any] = [span for span in theirs.get_finished_spans() if span.parent is not None]
    assert {span.parent.span_id for span in made} == requests
    assert len(made) == len(requests) == 4  # a select is one
    assert {span.context.trace_id for span in made} == {int(trace.trace_id, 16)}
    for number in requests:
        about = spans[number].attributes or {}
        assert about["gen_ai.provider.name"] == "sglang"
        assert about["gen_ai.usage.input_tokens"] > 0
        parent = spans[spans[number].parent.span_id]
        assert spans[parent.parent.span_id].name == "program program"
        assert parent.start_time <= spans[number].start_time <= spans[number].end_time


def test_queue_prefill_and_decode_add_up(tmp_path: Path) -> None:
    with serve_text(tmp_path) as server:
        body: dict[str, Any] = {
            "text": ["the lazy dog", "a"], "return_spans": True,
            "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True, "n": 2},
        }  # fmt: skip
        answers = server.client.post("/generate", json=body).json()
        assert len(answers) == 4
        body["sampling_params"] = {"max_new_tokens": 0}
        fills = server.client.post("/generate", json=body).json()
        del body["return_spans"]
        plain = server.client.post("/generate", json=body).json()
        whole = {"choices": [" x", " y"], "choices_scoring": "whole"}
        chosen = server.client.post(
            "/generate", json={"text": "a", "return_spans": True, "sampling_params": whole}
        ).json()
        streamed = server.client.post(
            "/generate", json={"text": "a", "return_spans": True, "stream": True}
        )
    assert "spans" not in plain[0]["meta_info"]
    for answer in (*answers, *fills, chosen):
        spans, whole_time = answer["meta_info"]["spans"], answer["meta_info"]["e2e_latency"]
        drawn = spans["first_token"]
        marks = [0.0, spans["submitted"], spans["scheduled"], *([] if drawn is None else [drawn])]
        assert marks == sorted(marks)
        assert marks[-1] <= spans["end"]
        assert spans["end"] - spans["submitted"] == pytest.approx(whole_time)
        assert spans["retractions"] == 0
    assert all(answer["meta_info"]["spans"]["first_token"] for answer in answers)
    assert all(one["meta_info"]["spans"]["first_token"] is None for one in (*fills, chosen))
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line[6:7] == "{"]
    assert ["spans" in event["meta_info"] for event in events] == [False] * (len(events) - 1) + [
        True
    ]


# -- the command ----------------------------------------------------------------------------------


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from sglang.srt.cli import main; code = main(); " \
        "assert 'torch' not in sys.modules; sys.exit(code)"  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", program, "trace", *words], cwd=cwd, capture_output=True, text=True,
        timeout=60, env={"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


SCRIPT = """\
import sys
import sglang as sgl

@sgl.function
def greet(s, name):
    s += "Hello " + name + sgl.gen("more", max_tokens=3)

for name in sys.argv[1:]:
    greet.run(name, backend=sgl.Mock())
if "fail" in sys.argv:
    raise ValueError("as asked")
"""


@pytest.mark.slow
def test_a_script_is_run_and_every_program_in_it_recorded(tmp_path: Path) -> None:
    (tmp_path / "greet.py").write_text(SCRIPT)
    done = command("--price", "input=3", "greet.py", "Ann", "--bob", "-o", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out.json: 2 runs, 2 requests")
    trace = Trace.load(tmp_path / "out.json")
    assert [group.arguments for group in trace.groups] == ["'Ann'", "'--bob'"]
    assert trace.prices == {"input": 3.0}
    for format, path in (("html", "out.html"), ("chrome", "out.chrome.json")):
        done = command("out.json", "--format", format, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / path).stat().st_size > 1000


@pytest.mark.slow
def test_a_script_that_fails_is_shown_and_its_trace_written(tmp_path: Path) -> None:
    (tmp_path / "greet.py").write_text(SCRIPT)
    done = command("-o", "out.html", "greet.py", "fail", cwd=tmp_path)
    assert done.returncode == 1
    assert "ValueError: as asked" in done.stderr
    assert "runpy" not in done.stderr
    assert (tmp_path / "out.html").exists()


@pytest.mark.slow
def test_a_script_that_is_interrupted_leaves_no_empty_page(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("raise KeyboardInterrupt")
    done = command("-o", "early.html", "early.py", cwd=tmp_path)
    assert done.returncode == 130
    assert "interrupted before a program ran" in done.stderr
    assert not (tmp_path / "early.html").exists()
    (tmp_path / "late.py").write_text(SCRIPT.replace("ValueError", "KeyboardInterrupt"))
    assert command("-o", "late.html", "late.py", "fail", cwd=tmp_path).returncode == 130
    assert (tmp_path / "late.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.py"], "there is no file 'none.py'"),
        (["none.json"], "none.json"),
        (["text.json"], "is no JSON"),
        (["other.json"], "no recorded trace"),
        (["nan.json"], "NaN is no number"),
        (["--price", "in=3", "other.json"], "prices has 'in'"),
        (["--price", "input", "other.json"], "give KIND=DOLLARS"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("<html>")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "nan.json").write_text('{"format": NaN}')
    assert main(["trace", *words]) == 1
    errors = capsys.readouterr().err
    assert said in errors
    assert "Traceback" not in errors


WRONG: tuple[Any, ...] = (None, -1, 1e300, "x", [], [1], {}, {"a": 1})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in plain data; of a list, those in its last item."""
    inside: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list) and value:
        inside = ((len(value) - 1, value[-1]),)
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


def test_a_damaged_trace_is_refused_or_rendered(trace: Trace) -> None:
    good = json.dumps(trace.to_dict())
    for *path, last in filter(None, places(json.loads(good))):
        for wrong in WRONG:
            data = inner = json.loads(good)
            for key in path:
                inner = inner[key]
            inner[last] = wrong
            try:
                read = Trace.from_dict(data)
            except ValueError:
                continue
            for format in FORMATS:
                written(read, format)


@pytest.mark.parametrize("part", ["groups", "lanes", "spans"])
def test_a_part_of_itself_is_refused(trace: Trace, part: str) -> None:
    data = json.loads(json.dumps(trace.to_dict()))
    data[part][0]["parent"] = data[part][0]["number"]
    with pytest.raises(ValueError, match="before what it is part of"):
        Trace.from_dict(data)


def test_a_loaded_trace_goes_on(trace: Trace) -> None:
    read = Trace.from_dict(json.loads(json.dumps(trace.to_dict())))
    program.run("x", backend=sgl.Mock(), trace=read)
    again = Trace.from_dict(json.loads(json.dumps(read.to_dict())))
    assert again.totals()["runs"] == 2


def test_spans_that_are_sent_are_utf8() -> None:
    @sgl.function
    def fails(s: Any) -> None:
        raise ValueError("\ud800")

    trace = Trace()
    with pytest.raises(ValueError, match="\ud800"):
        fails.run(backend=sgl.Mock(), trace=trace)
    assert "\\ud800" not in written(trace, "otlp-json")


def test_reasons_that_are_sent_are_utf8() -> None:
    trace = Trace()
    program.run("x", backend=sgl.Mock(), trace=trace)
    request = next(span for span in trace.spans if span.kind == "request")
    request.data["finish"] = "\ud800, stop"
    sent = written(trace, "otlp-json")
    assert '[{"stringValue":"?"},{"stringValue":"stop"}]' in sent
    assert "\\ud800" not in sent


@pytest.mark.slow
def test_a_script_may_leave_its_folder_and_exit_with_anything(tmp_path: Path) -> None:
    (tmp_path / "away.py").write_text("import os, sys\nos.chdir('/')\nsys.exit(['bad'])\n")
    done = command("-o", "out.html", "away.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "['bad']" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out.html").exists()
