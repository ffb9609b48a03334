"""Timeline: what a recorded run says of itself, in every way of running; and that nothing is
recorded unasked."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.backend.answer_facts import facts_of
from sglang.run.recording import Recording
from sglang.views.timeline.trace import Trace
from sglang.views.timeline.trace_view import gaps, view_of

NODES = ("gen", "select", "commit")
PRICES = {"input": 3.0, "cached": 0.3, "output": 15.0}


@sgl.function
def tips(s: Any, topic: str) -> Any:
    s += "About " + topic + ": "
    s += sgl.gen("plan", max_tokens=8, temperature=0.5)
    forks = s.fork(2)
    forks += lambda i: f" Tip {i}:" + sgl.gen("tip", max_tokens=8)
    forks.join()
    s += " Best:" + sgl.select("best", ["a", "b"])
    return s["tip"]


def nodes(trace: Trace) -> list[Any]:
    return [span for span in trace.spans if span.kind in NODES]


def requests(trace: Trace) -> list[Any]:
    return [span for span in trace.spans if span.kind == "request"]


def check(trace: Trace) -> dict[str, Any]:
    """Spans nest and lie within their run, phases fill their request; gives the view."""
    view = view_of(trace)
    groups = {group["number"]: group for group in view["groups"]}
    lanes = {lane["number"]: lane for lane in view["lanes"]}
    spans = {span["number"]: span for span in view["spans"]}
    for span in view["spans"]:
        around = groups[lanes[span["lane"]]["group"]]
        if span["kind"] == "request":
            around = spans[span["parent"]]
            assert around["kind"] in NODES
            assert around["lane"] == span["lane"]
            marks = [span["begin"], *(end for *_, end in span["phases"])]
            assert [begin for _, begin, _ in span["phases"]] == marks[:-1]
            assert marks == sorted(marks)
            assert marks[-1] == span["end"] or span["begin"] == span["end"]
        assert around["begin"] <= span["begin"] <= span["end"] <= around["end"]
    for lane in view["lanes"]:
        own = sorted(
            (s["begin"], s["end"]) for s in view["spans"]
            if s["lane"] == lane["number"] and s["kind"] in NODES
        )  # fmt: skip
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own))
        if lane["parent"] is not None:
            assert lanes[lane["parent"]]["group"] == lane["group"]
    return view


def test_a_run_with_forks() -> None:
    backend = sgl.Mock(["x y", "one", "two", "b"])
    state = tips.run("dogs", backend=backend, trace=True)
    trace = state.trace()
    check(trace)
    (group,) = trace.groups
    assert (group.name, group.arguments, group.status) == ("tips", "'dogs'", "ok")
    main, first, second = trace.lanes
    assert (first.parent, first.index) == (main.number, 0)
    assert (second.parent, second.index) == (main.number, 1)
    assert first.code == "forks = s.fork(2)"
    assert main.begin is not None
    assert first.begin is not None
    assert main.begin <= first.begin
    found = nodes(trace)[0]
    assert (found.lane, found.kind, found.name) == (main.number, "gen", "plan")
    tip = next(span for span in nodes(trace) if span.lane == second.number)
    assert tip.source == f"{__file__}:{tips.func.__code__.co_firstlineno + 5}"
    assert tip.data["outputs"] == [
        {"name": "tip", "text": state["tip"][1], "chars": 3, "reused": False}
    ]
    assert tip.data["prompt"].endswith(" Tip 1:")
    plan = nodes(trace)[0]
    assert plan.data["params"]["temperature"] == "0.5"
    (join,) = trace.joins
    assert (join.lane, join.lanes) == (main.number, [first.number, second.number])
    assert len(requests(trace)) == len(backend.calls) == 4


def test_tokens_are_those_of_the_usage_and_cost_what_they_cost() -> None:
    trace = Trace(prices=PRICES)
    state = tips.run("dogs", backend=sgl.Mock(), trace=trace)
    totals = trace.totals()
    usage = state.usage
    assert totals["prompt_tokens"] == usage.prompt_tokens
    assert totals["cached_tokens"] == usage.cached_tokens > 0
    assert totals["completion_tokens"] == usage.completion_tokens
    computed = usage.prompt_tokens - usage.cached_tokens
    dollars = 3 * computed + 0.3 * usage.cached_tokens + 15 * usage.completion_tokens
    assert totals["cost"] == pytest.approx(dollars / 1e6)
    assert totals["hit_rate"] == usage.cached_tokens / usage.prompt_tokens


def test_nothing_is_recorded_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("recorded")

    monkeypatch.setattr(Recording, "__init__", never)
    state = tips.run("dogs", backend=sgl.Mock(), trace=False)
    assert state._executor.track is None
    with pytest.raises(sgl.SglangError, match="was not recorded"):
        state.trace()


def test_a_batch_is_one_trace_with_a_group_an_item(tmp_path: Path) -> None:
    path = tmp_path / "batch.json"
    backend = sgl.Mock(delay=0.002)
    tips.run_batch([{"topic": name * 40} for name in "abc"], backend=backend, trace=path)
    trace = Trace.load(path)
    check(trace)
    assert [group.name for group in trace.groups].count("tips") == 3
    assert len(requests(trace)) == len(backend.calls)
    assert len({lane.group for lane in trace.lanes}) == len(trace.groups)


def test_what_a_batch_computes_first_is_a_group_of_its_own() -> None:
    @sgl.function
    def classify(s: Any, text: str) -> None:
        s += "You are to say whether a text is kind or not, in one word and no more than that. "
        s += text + sgl.gen("word", max_tokens=2)

    backend = sgl.Mock()
    with sgl.tracing() as trace:
        classify.run_batch([{"text": "a"}, {"text": "b"}], backend=backend)
    assert Counter(group.name for group in trace.groups) == {"common prefix": 1, "classify": 2}
    assert len(requests(trace)) == len(backend.calls) == 3


def test_in_an_event_loop(tmp_path: Path) -> None:
    async def all_ways() -> tuple[Trace, int]:
        backend = sgl.Mock(delay=0.002)
        trace = Trace()
        await tips.arun("dogs", backend=backend, trace=trace)
        async for _ in tips.arun_batch([("cats",), ("cows",)], backend=backend, trace=trace):
            pass
        state = await tips.arun("ants", backend=backend, stream=True, trace=trace)
        async for _ in state.text_async_iter():
            pass
        await state.adone()
        return trace, len(backend.calls)

    trace, calls = asyncio.run(all_ways())
    view = check(trace)
    assert [group["status"] for group in view["groups"]] == ["ok"] * 4
    assert len(requests(trace)) == calls == 16
    streamed = [span for span in requests(trace) if "first" in span.data]
    assert len(streamed) == 3  # the gens of the one that was streamed


def test_a_program_that_raises_still_writes_its_file(tmp_path: Path) -> None:
    @sgl.function
    def fails(s: Any) -> None:
        s += "a" + sgl.gen("good")
        forks = s.fork(2)
        forks[0] += sgl.gen("bad")
        forks[1] += "b"
        forks.join()

    def script(prompt: Any, params: Any) -> Any:
        return sgl.BackendError("no quota") if prompt.text.endswith("xa") else "xa"

    path = tmp_path / "out.json"
    with pytest.raises(sgl.ProgramError, match="no quota"):
        fails.run(backend=sgl.Mock(script), trace=path)
    trace = Trace.load(path)
    check(trace)
    (group,) = trace.groups
    assert group.status == "error"
    assert "no quota" in group.error
    (bad,) = [span for span in nodes(trace) if span.status == "error"]
    assert bad.name == "bad"
    assert trace.lanes[1].status == "error"
    assert trace.lanes[2].status == "ok"
    assert trace.totals()["errors"] == 1


def test_what_is_cancelled_is_shown_as_such() -> None:
    begun, over = threading.Event(), threading.Event()

    def script(prompt: Any, params: Any) -> str:
        begun.set()
        over.wait(60)
        return "late"

    @sgl.function
    def impatient(s: Any) -> None:
        forks = s.fork(2)
        forks += sgl.gen("slow")
        begun.wait(60)
        raise KeyError("enough")

    trace = Trace()
    with pytest.raises(KeyError):
        impatient.run(backend=sgl.Mock(script), trace=trace)
    over.set()
    assert trace.groups[0].status == "error"
    while any(span.end is None for span in trace.spans):
        time.sleep(0.01)
    view = check(trace)  # also: nothing ends after its run
    assert {lane["status"] for lane in view["lanes"][1:]} == {"cancelled"}


def test_a_reader_that_leaves_cancels() -> None:
    @sgl.function
    def endless(s: Any) -> None:
        for i in range(10_000):
            s += sgl.gen(f"n{i}", max_tokens=1)
            s[f"n{i}"]

    trace = Trace()
    with endless.run(backend=sgl.Mock(delay=0.001), stream=True, trace=trace) as state:
        next(state.text_iter("n0"), None)
    while trace.groups[0].end is None:
        time.sleep(0.005)
    assert trace.groups[0].status == "cancelled"


def test_a_program_inside_another() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        s += "q" + sgl.gen("a", max_tokens=2)

    @sgl.function
    def outer(s: Any) -> None:
        s += "p" + inner.run()["a"] + sgl.gen("b", max_tokens=2)

    trace = outer.run(backend=sgl.Mock(), trace=True).trace()
    view = check(trace)
    first, second = trace.groups
    assert (first.name, second.name, second.parent) == ("outer", "inner", first.number)
    # The outer one's last gen has waited for the inner one's.
    assert [span["name"] for span in view["spans"] if span.get("critical")] == ["a", "b"]


def test_the_programs_own_time_is_code() -> None:
    @sgl.function
    def uses_a_tool(s: Any) -> None:
        s += "q" + sgl.gen("a", max_tokens=2)
        s["a"]
        time.sleep(0.03)
        s += sgl.gen("b", max_tokens=2)

    trace = uses_a_tool.run(backend=sgl.Mock(delay=0.03), trace=True).trace()
    code = [span for span in check(trace)["spans"] if span["kind"] == "code"]
    first, second = nodes(trace)
    (tool,) = (s for s in code if first.end - 0.02 <= s["begin"] < s["end"] <= second.begin + 0.02)
    assert tool["end"] - tool["begin"] >= 0.03


def test_what_an_api_model_wrote_ahead_is_marked_as_reused() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def sheet(s: Any) -> None:
        s += "Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")

    backend = sgl.Mock([" Nora\nJob: baker\n"], speculates="text")
    trace = sheet.run(backend=backend, trace=True).trace()
    view = check(trace)
    outputs = [out for span in nodes(trace) for out in span.data["outputs"]]
    assert [(out["name"], out["reused"]) for out in outputs] == [("name", False), ("job", True)]
    assert len(requests(trace)) == len(backend.calls) == 1
    assert view["totals"]["reused"] == 1


def test_compiled_programs_and_side_by_side_joins() -> None:
    @sgl.function
    def wide(s: Any, a: str) -> None:
        forks = s.fork(2)
        forks += a + sgl.gen("x", max_tokens=2)
        forks.join("concate_and_append")
        s += sgl.gen("y", max_tokens=2)

    backend = sgl.Mock()
    trace = wide.compile().run(a="q", backend=backend, trace=True).trace()
    check(trace)
    assert len(requests(trace)) == len(backend.calls)
    assert [join.mode for join in trace.joins] == ["concate_and_append"]
    assert len(trace.lanes) == 3  # copies that the language makes are none


# -- random programs ------------------------------------------------------------------------------

Body = list[Any]
bodies = st.recursive(
    st.lists(st.sampled_from(["gen", "select", "text", "read"]), max_size=4),
    lambda inner: st.lists(
        st.one_of(st.sampled_from(["gen", "text", "fail"]), st.tuples(st.integers(1, 3), inner)),
        max_size=4,
    ),
    max_leaves=6,
)


def perform(s: Any, body: Body) -> None:
    for number, step in enumerate(body):
        if step == "gen":
            s += f"g{number}" + sgl.gen(f"v{number}", max_tokens=3)
        elif step == "select":
            s += sgl.select(f"v{number}", ["a", "b"])
        elif step == "text":
            s += "t "
        elif step == "fail":
            s += "FAIL" + sgl.gen("failed", max_tokens=3)
        elif step == "read":
            s.sync()
        else:
            forks = s.fork(step[0])
            for fork in forks:
                perform(fork, step[1])
            forks.join()


def breaks(prompt: Any, params: Any) -> Any:
    return sgl.BackendError("broken") if prompt.text.endswith("FAIL") else "a"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(bodies, st.booleans(), st.booleans())
def test_every_call_is_there_once_and_spans_nest(body: Body, threads: bool, loop: bool) -> None:
    program = sgl.SglFunction(lambda s: perform(s, body))
    backend, trace = sgl.Mock(breaks), Trace()
    try:
        if loop:
            asyncio.run(program.arun(backend=backend, trace=trace))
        else:
            program.run(backend=backend, use_thread=threads, trace=trace)
    except sgl.ProgramError:
        assert trace.groups[0].status == "error"
    view = check(trace)
    kinds = Counter(call.kind for call in backend.calls)
    assert kinds == Counter(
        next(node for node in nodes(trace) if node.number == span.parent).kind
        for span in requests(trace)
    )
    assert Trace.from_dict(json.loads(json.dumps(trace.to_dict()))).to_dict() == trace.to_dict()
    path = [span for span in view["spans"] if span.get("critical")]
    path.sort(key=lambda span: span["end"])
    assert bool(path) == bool(nodes(trace))
    assert all(a["end"] <= b["begin"] + 1e-3 for a, b in pairwise(path))


# -- pieces ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(-5, 25), st.integers(0, 9)), max_size=6))
def test_gaps_are_what_no_interval_covers(taken: list[tuple[int, int]]) -> None:
    intervals = [(begin, begin + length) for begin, length in taken]
    free = {i for i in range(20) if not any(a <= i < b for a, b in intervals)}
    found = gaps((0, 20), intervals)
    assert {i for a, b in found for i in range(int(a), int(b))} == free
    assert all(a < b for a, b in found)


def spans(submitted: float, scheduled: float, first: float | None, end: float) -> dict[str, Any]:
    return {"submitted": submitted, "scheduled": scheduled, "first_token": first, "end": end,
            "retractions": 1}  # fmt: skip


def test_the_servers_times_are_centred_in_the_round_trip() -> None:
    answer = {"text": "x", "meta_info": {"prompt_tokens": 7, "spans": spans(1, 2, 3, 6)}}
    found = facts_of(answer, False, 10.0, 18.0, None)
    assert found == {
        "prompt_tokens": 7, "received": 11.0, "scheduled": 13.0, "first": 14.0, "done": 17.0,
        "retractions": 1,
    }  # fmt: skip
    # A server that says it took longer than the call did: nothing leaves the call.
    late = facts_of(answer, False, 10.0, 12.0, None)
    assert [late[name] for name in ("received", "scheduled", "first", "done")] == [10, 12, 12, 12]


def test_completions_share_a_prompt_and_several_prompts_do_not() -> None:
    metas = [{"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 2}] * 3
    answer = [{"text": "", "meta_info": meta} for meta in metas]
    of_one, of_three = facts_of(answer, False, 0, 1, None), facts_of(answer, True, 0, 1, None)
    assert (of_one["prompt_tokens"], of_three["prompt_tokens"]) == (9, 27)
    assert of_one["completion_tokens"] == of_three["completion_tokens"] == 6
    assert of_one["rows"] == 3


@pytest.mark.parametrize(
    ("to", "error"),
    [
        ("out.txt", ValueError), ("nowhere/at/all.html", OSError), (3, TypeError),
        ("folder.html", OSError), ("barred/out.html", OSError), ("/proc/out.html", OSError),
    ],
)  # fmt: skip
def test_an_unwritable_path_is_refused_before_anything_runs(
    to: Any, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = sgl.Mock()
    for name in ("folder.html", "barred"):
        (tmp_path / name).mkdir()
    may = os.access  # root may run this test, and has access to everything
    barred = {tmp_path / "barred", Path("/proc")}
    monkeypatch.setattr(os, "access", lambda path, mode: path not in barred and may(path, mode))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        tips.run("dogs", backend=backend, trace=to)
    with pytest.raises(error), sgl.tracing(to):
        pass
    assert backend.calls == []


def test_an_argument_named_trace_is_told_apart() -> None:
    @sgl.function
    def named(s: Any, trace: str) -> None:
        s += trace

    assert named.run("t", backend=sgl.Mock()).text() == "t"
    with pytest.raises(TypeError, match="'trace' is an argument of named and an option"):
        named.run(trace="t", backend=sgl.Mock())


@pytest.mark.parametrize("prices", [{"prompt": 1}, {"input": -1}, {"input": "1"}, {"output": True}])
def test_prices_are_checked(prices: Any) -> None:
    with pytest.raises(ValueError, match="price"):
        Trace(prices=prices)


def damaged(**changes: Any) -> dict[str, Any]:
    data = tips.run("dogs", backend=sgl.Mock(), trace=True).trace().to_dict()
    return {**data, **changes}


@pytest.mark.parametrize(
    "changes",
    [{"format": "x"}, {"version": 9}, {"spans": None}, {"lanes": []}, {"groups": [{}]},
     {"spans": [{"number": 1, "lane": 2, "kind": "gen", "name": "x", "begin": "0", "end": 1}]}],
)  # fmt: skip
def test_a_damaged_trace_is_a_clear_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="trace"):
        Trace.from_dict(damaged(**changes))


def test_each_of_several_tracings_has_its_own_runs() -> None:
    found: dict[int, Trace] = {}
    together = threading.Barrier(3)

    def work(number: int) -> None:
        with sgl.tracing() as trace:
            together.wait()
            tips.run(str(number), backend=sgl.Mock())
            tips.run_batch([(str(number),)] * 2, backend=sgl.Mock())
            together.wait()
        found[number] = trace

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, trace in found.items():
        runs = [group.arguments for group in trace.groups if group.name == "tips"]
        assert len(runs) == 3
        assert all(str(number) in run for run in runs)


def test_what_is_no_number_in_an_answer_is_left_out() -> None:
    spans = {"end": "x", "scheduled": float("nan"), "first_token": [], "retractions": "a"}
    meta = {"prompt_tokens": "many", "cached_tokens": float("inf"), "completion_tokens": 2}
    facts = facts_of({"meta_info": {**meta, "spans": spans}}, False, 1.0, 2.0, None)
    assert "prompt_tokens" not in facts
    assert "cached_tokens" not in facts
    assert facts["completion_tokens"] == 2
    assert all(1 <= facts[name] <= 2 for name in ("received", "scheduled", "first", "done"))


def test_a_program_may_leave_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @sgl.function
    def away(s: Any) -> None:
        monkeypatch.chdir("/")

    monkeypatch.chdir(tmp_path)
    away.run(backend=sgl.Mock(), trace="out.html")
    assert (tmp_path / "out.html").exists()


def test_a_trace_can_be_read_while_programs_run() -> None:
    trace, done = Trace(), threading.Event()

    def work() -> None:
        while not done.is_set():
            tips.run("x", backend=sgl.Mock(), trace=trace)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            trace.totals()
            Trace.from_dict(trace.to_dict())
    finally:
        done.set()
        for thread in threads:
            thread.join()
