"""A recorded run ends as an unrecorded one would, whatever it did, was given or was answered; and
what it recorded can be read and rendered."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from sglang.backend.answer_facts import facts_of
from sglang.views.timeline import timeline_page
from sglang.views.timeline.timeline_page import embedded
from sglang.views.timeline.trace import Trace
from sglang.views.timeline.trace_formats import FORMATS, written
from sglang.views.timeline.trace_view import cost, view_of

INFINITE, HUGE = float("inf"), 10**400


@sgl.function
def ask(s: Any) -> None:
    s += "a" + sgl.gen("x", max_tokens=2)


@sgl.function
def long(s: Any, text: str) -> None:
    s += "This is what all of them begin with, and it is long enough to be computed ahead. " * 2
    s += text + sgl.gen("x", max_tokens=2)


def rendered(trace: Trace) -> dict[str, Any]:
    """The view. Every format can be written, none has what JSON has not, and ``load`` takes it."""
    view = view_of(trace)
    texts = [written(trace, format) for format in FORMATS if format != "html"]
    for text in (*texts, embedded(view)):
        json.loads(text, parse_constant=pytest.fail)
    Trace.from_dict(json.loads(written(trace, "json")))
    return view


# -- compiled programs ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["gather_variable", "concate_and_append"])
def test_a_fork_may_go_on_after_a_compiled_join(mode: str) -> None:
    @sgl.function
    def goes_on(s: Any) -> None:
        forks = s.fork(2)
        forks += "a" + sgl.gen("x", max_tokens=2)
        forks.join(mode)
        forks[0] += "b" + sgl.gen("y", max_tokens=2)

    trace = goes_on.compile().run(backend=sgl.Mock(), trace=True).trace()
    rendered(trace)
    main, first, second = trace.lanes
    (join,) = trace.joins
    assert (join.lane, join.lanes) == (main.number, [first.number, second.number])


def test_a_called_program_may_have_nothing_but_forks() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        forks = s.fork(2)
        forks += "a" + sgl.gen("x", max_tokens=2)
        forks.join()

    @sgl.function
    def outer(s: Any) -> None:
        inner.run()
        s += "b" + sgl.gen("z", max_tokens=2)

    view = rendered(outer.compile().run(backend=sgl.Mock(), trace=True).trace())
    labels = [lane["label"] for lane in view["lanes"]]
    assert labels == ["main", "called", "fork 0.0", "fork 0.1"]


def test_a_compiled_join_is_in_the_joining_stream_copies_in_none() -> None:
    @sgl.function
    def nested(s: Any, a: str) -> Any:
        forks = s.fork(2)
        for fork in forks:
            fork += a + sgl.gen("x", max_tokens=2)
            below = fork.fork(2)
            below += "b" + sgl.gen("y", max_tokens=2)
            below.join()
        forks.join()
        s += sgl.gen("x", max_tokens=2)
        s += sgl.gen("x", max_tokens=2)
        return s["x"]  # read from a copy of the state, which has no stream

    streams = ["fork 0", "fork 0.0", "fork 0.1", "fork 1", "fork 1.0", "fork 1.1", "main"]
    for program in (nested, nested.compile()):
        trace = program.run(a="q", backend=sgl.Mock(delay=0.002), trace=True).trace()
        view = rendered(trace)
        labels = {lane["number"]: lane["label"] for lane in view["lanes"]}
        assert sorted(labels.values()) == streams
        assert sorted(labels[join["lane"]] for join in view["joins"]) == [
            "fork 0",
            "fork 1",
            "main",
        ]
        for join in view["joins"]:
            assert all(lane["parent"] == join["lane"] for lane in view["lanes"]
                       if lane["number"] in join["lanes"])  # fmt: skip
        assert any(span["kind"] == "wait" for span in view["spans"])


# -- copies ---------------------------------------------------------------------------------------


def test_idle_copies_are_no_streams_and_others_are_told_apart() -> None:
    @sgl.function
    def copies(s: Any) -> Any:
        s += "q" + sgl.gen("a", max_tokens=2)
        with s.copy() as kept:
            kept += sgl.gen("b", max_tokens=2)
        with s.copy() as returned:
            pass
        with s.copy() as later:
            pass
        assert returned["a"] == s["a"]
        later += "z" + sgl.gen("c", max_tokens=2)
        kept += sgl.gen("d", max_tokens=2)
        return returned

    state = copies.run(backend=sgl.Mock(delay=0.002), trace=True)
    assert state.ret_value["a"] == state["a"]
    view = rendered(state.trace())
    labels = {lane["number"]: lane["label"] for lane in view["lanes"]}
    assert list(labels.values()) == ["main", "fork 0", "fork 0 (2)"]
    calls = [(labels[s["lane"]], s["name"]) for s in view["spans"] if s["kind"] == "gen"]
    assert sorted(calls) == [
        ("fork 0", "b"), ("fork 0", "d"), ("fork 0 (2)", "c"), ("main", "a"),
    ]  # fmt: skip


# -- failures -------------------------------------------------------------------------------------


def test_calls_that_still_go_on_when_the_run_ends_have_been_sent(tmp_path: Path) -> None:
    both, over = threading.Barrier(3), threading.Event()

    def script(prompt: Any, params: Any) -> str:
        both.wait(10)
        over.wait(10)
        return "late"

    @sgl.function
    def leaves(s: Any) -> None:
        forks = s.fork(2)
        forks += sgl.gen("slow", max_tokens=2)
        both.wait(10)
        raise LookupError("enough")

    path = tmp_path / "out.json"
    with pytest.raises(LookupError):
        leaves.run(backend=sgl.Mock(script), trace=path)
    over.set()
    view = rendered(Trace.load(path))
    assert (view["totals"]["requests"], view["totals"]["cancelled"]) == (2, 2)
    for request in (span for span in view["spans"] if span["kind"] == "request"):
        ((name, begin, end),) = request["phases"]
        assert (name, begin, end) == ("model", request["begin"], request["end"])
        assert request["status"] == "cancelled"


def test_what_a_batch_computes_first_is_no_program_code() -> None:
    trace = Trace()
    backend = sgl.Mock(delay=0.005)
    long.run_batch([("a",), ("b",)], backend=backend, trace=trace)
    view = rendered(trace)
    (first,) = (group for group in view["groups"] if group["name"] != "long")
    lanes = {lane["number"]: lane["group"] for lane in view["lanes"]}
    assert {s["kind"] for s in view["spans"] if lanes[s["lane"]] == first["number"]} == {
        "commit", "request",
    }  # fmt: skip


def test_a_programs_error_outranks_an_unwritable_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @sgl.function
    def fails(s: Any) -> None:
        raise LookupError("as asked")

    monkeypatch.setattr(timeline_page, "page_of", lambda trace: dict[str, str]()["lane"])
    with (
        pytest.warns(RuntimeWarning, match="was not written: KeyError: 'lane'"),
        pytest.raises(LookupError, match="as asked"),
    ):
        fails.run(backend=sgl.Mock(), trace=tmp_path / "out.html")


def test_a_trace_that_cannot_be_written_takes_no_results_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    to, backend = tmp_path / "out.html", sgl.Mock(lambda prompt, params: "x")
    with pytest.warns(RuntimeWarning, match="was not written: OSError.*No space left"):
        assert ask.run(backend=backend, trace=to).usage.calls == 1
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert len(ask.run_batch([{}] * 2, backend=backend, trace=to)) == 2
    with pytest.warns(RuntimeWarning, match="No space left"), sgl.tracing(to):
        ask.run(backend=backend)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", INFINITE), ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", HUGE)],
    ids=["infinite", "64 bits", "below", "huge"],
)
def test_a_parameter_too_large_to_export_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; it must be"):
        ask.run(backend=sgl.Mock(), trace=True, **{name: value})


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_a_seed_of_64_bits_is_exported(seed: int) -> None:
    trace = ask.run(backend=sgl.Mock(), trace=True, seed=seed).trace()
    assert f'"gen_ai.request.seed","value":{{"intValue":"{seed}"}}' in written(trace, "otlp-json")


@pytest.mark.parametrize("amount", [HUGE, 1e300, -1, True], ids=["huge", "float", "below", "bool"])
def test_what_is_no_amount_in_an_answer_is_left_out(amount: Any) -> None:
    spans = dict.fromkeys(("end", "scheduled", "first_token", "retractions"), amount)
    meta = {"prompt_tokens": amount, "completion_tokens": 2, "spans": spans}
    times = dict.fromkeys(("received", "scheduled", "first", "done"), 1.5)
    found = facts_of({"meta_info": meta}, False, 1.0, 2.0, None)
    assert found == {"completion_tokens": 2, **times}


def test_too_many_cached_tokens_cost_no_less_than_nothing() -> None:
    data = {"prompt_tokens": 1, "cached_tokens": 4}
    assert cost(data, {"input": 3.0, "cached": 1.0}) == pytest.approx(4e-6)


# -- traces of others -----------------------------------------------------------------------------


def recorded() -> dict[str, Any]:
    return ask.run(backend=sgl.Mock(), trace=True).trace().to_dict()


def with_source(source: str) -> dict[str, Any]:
    data = recorded()
    (node,) = (span for span in data["spans"] if span["kind"] == "gen")
    node["source"] = source
    return data


@pytest.mark.parametrize("source", ["x", "x:", "x:1 ", "x:²", "x:-1", "x:" + "9" * 5000])
def test_a_source_that_is_no_place_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="the trace is damaged: source is 'x"):
        Trace.from_dict(with_source(source))


@pytest.mark.parametrize("source", ["", "x:1", "a\nb:c:20"])
def test_a_source_may_be_any_files(source: str) -> None:
    rendered(Trace.from_dict(with_source(source)))


@pytest.mark.parametrize("trace_id", ["", "x", "0" * 31, "0" * 33, "G" * 32, None, {}])
def test_a_trace_id_that_is_none_is_refused(trace_id: Any) -> None:
    with pytest.raises(ValueError, match="the trace is damaged: trace_id is"):
        Trace.from_dict({**recorded(), "trace_id": trace_id})
