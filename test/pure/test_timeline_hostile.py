"""A recorded run ends as an unrecorded one would, whatever it did, was given or was answered; and
what it recorded can be read and rendered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from sglang.timeline.answers import facts_of
from sglang.timeline.formats import FORMATS, written
from sglang.timeline.page import embedded
from sglang.timeline.trace import Trace
from sglang.timeline.view import cost, view_of

INFINITE, HUGE = float("inf"), 10**400


@sgl.function
def ask(s: Any) -> None:
    s += "a" + sgl.gen("x", max_tokens=2)


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
    main, first, second = trace.lanes[:3]  # after them a copy whose end somebody waited for
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


# -- what goes wrong ------------------------------------------------------------------------------


def test_a_programs_error_counts_more_than_a_trace_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @sgl.function
    def fails(s: Any) -> None:
        raise LookupError("as asked")

    monkeypatch.setattr(Trace, "to_html", lambda trace: {}["lane"])
    with (
        pytest.warns(RuntimeWarning, match="was not written: KeyError: 'lane'"),
        pytest.raises(LookupError, match="as asked"),
    ):
        fails.run(backend=sgl.Mock(), trace=tmp_path / "out.html")


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", INFINITE), ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", HUGE)],
    ids=["infinite", "64 bits", "below", "huge"],
)
def test_a_parameter_may_be_larger_than_what_is_exported(name: str, value: Any) -> None:
    trace = ask.run(backend=sgl.Mock(), trace=True, **{name: value}).trace()
    rendered(trace)
    (node,) = (span for span in trace.spans if span.kind == "gen")
    assert name in node.data["params"]
    assert name not in node.data["sampling"]


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


def test_more_cached_tokens_than_there_are_cost_no_less_than_nothing() -> None:
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
