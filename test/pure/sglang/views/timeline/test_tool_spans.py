"""Tools on the timeline, in the history and in displays."""

from __future__ import annotations

import io
import time

import pytest
import sglang as sgl
from sglang.run.history import HISTORY
from sglang.views.timeline.chrome import chrome_trace
from sglang.views.timeline.otlp import otlp_json
from sglang.views.timeline.trace_view import view_of


def slow(text: str) -> str:
    time.sleep(0.02)
    return text.upper()


@sgl.function
def program(s):
    s += sgl.gen("a") + sgl.tool("b", slow, of="a")


def test_a_tool_is_a_node_without_requests(tmp_path) -> None:
    trace = program.run(backend=sgl.Mock(["hi"]), trace=True).trace()
    (tool,) = [span for span in trace.spans if span.kind == "tool"]
    assert (tool.name, tool.status) == ("b", "ok")
    assert tool.data["prompt"] == "hi"
    assert tool.data["params"] == {"tool": "slow"}
    assert [out["text"] for out in tool.data["outputs"]] == ["HI"]
    totals = trace.totals()
    assert totals["requests"] == 1
    assert totals["tool_seconds"] >= 0.02
    assert [s["kind"] for s in view_of(trace)["spans"] if s.get("critical")] == ["gen", "tool"]
    assert any(event["name"] == "tool b" for event in chrome_trace(trace)["traceEvents"])
    assert "tool b" in str(otlp_json(trace))
    trace.save(tmp_path / "trace.json")
    assert sgl.Trace.load(tmp_path / "trace.json").totals()["tool_seconds"] >= 0.02
    trace.save(tmp_path / "trace.html")


def test_a_failed_tool_is_a_failed_node() -> None:
    @sgl.function
    def failing(s):
        s += sgl.tool("x", lambda: 1 / 0)

    trace = sgl.Trace()
    with pytest.raises(sgl.ProgramError):
        failing.run(backend=sgl.Mock(), trace=trace)
    (span,) = [span for span in trace.spans if span.kind == "tool"]
    assert span.status == "error"
    assert "ZeroDivisionError" in span.error


def test_history_and_displays_show_a_tool() -> None:
    HISTORY.clear()
    state = program.run(backend=sgl.Mock(["hi"], chat_template="default"))
    file = io.StringIO()
    sgl.inspect_history(1, file)
    heading, *lines = file.getvalue().splitlines()
    assert heading.startswith("call 1 of 1: tool, mock, 0.0")
    assert lines == ["hi", "by slow:", "HI", ""]
    file = io.StringIO()
    state.show(file)
    assert file.getvalue().startswith("[gen a: hi][tool b: HI]\n")
    assert "tool b" in file.getvalue()
    assert "HI" in state._repr_html_()
