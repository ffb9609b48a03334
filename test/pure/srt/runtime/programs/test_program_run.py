"""Runs of programs over scripted calls: order, failures, cancels, hints, what is computed ahead."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypeVar

import pytest
from helpers.program_clients import Clients, clients, until
from helpers.program_graphs import (
    chain,
    gen,
    graph,
    map_reduce,
    stream,
    text,
    value,
)
from helpers.program_oracle import values_of
from helpers.scripted_calls import reply
from helpers.seeds import LONG
from sglang.srt.programs.call_graph import CallGraph
from sglang.srt.programs.placeholders import submission_of
from sglang.srt.programs.submission import Submission
from sglang.srt.programs.submission_check import CheckedProgram
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY, Caller
from sglang.srt.runtime.programs import application as application_module
from sglang.srt.runtime.programs import program_service
from sglang.srt.runtime.programs.program_bodies import (
    CancelBody,
    GetBody,
    SubmitBody,
)
from sglang.srt.runtime.programs.program_service import GetTimeout
from sglang.srt.runtime.programs.program_view import program_view
from sglang.srt.runtime.request_fields import convert

T = TypeVar("T")
APPEND = "concate_and_append"


def test_a_chain_is_one_submit_and_reads_what_came_before() -> None:
    async def use(c: Clients) -> None:
        session, run = await c.submit(chain(3))
        found = await c.get(session, run, 5, "x2")
        assert found == values_of(chain(3))[5, "x2"]
        assert [event["event"] for event in await c.events(session, run)] == [
            "started", "done", "started", "done", "started", "done", "end",
        ]  # fmt: skip

    clients(use)


def test_scopes_of_one_name_end_from_the_inside() -> None:
    begin, end = {"op": "scope_begin", "name": "s"}, {"op": "scope_end", "name": "s"}
    body = graph(stream(0, begin, text("a"), begin, text("b"), end, text("c"), end))

    async def use(c: Clients) -> None:
        session, run = await c.submit(body)
        assert await c.get(session, run, 4, "s") == "b"
        assert await c.get(session, run, 6, "s") == "abc"

    clients(use)


def test_a_second_output_of_a_prompt_reads_the_right_text() -> None:
    async def use(c: Clients) -> None:
        body = {"prompt": "A {{x}} B {{o1}} C {{o2}}", "placeholders": [
            {"name": "x", "in_out": False, "value": "in"}, {"name": "o1", "in_out": True},
            {"name": "o2", "in_out": True}]}  # fmt: skip
        _, run = await c.service.submit(convert(body, SubmitBody), ANYBODY)
        await until(lambda: run.over)
        first = "A in B "
        assert c.calls.prompts == [first, f"{first}{reply(first)} C "]

    clients(use)


def test_branches_run_beside_each_other_and_join() -> None:
    async def use(c: Clients) -> None:
        c.calls.held = asyncio.Event()
        session, run = await c.submit(map_reduce(5))
        await until(lambda: c.calls.open == 5)
        c.calls.held.set()
        assert await c.get(session, run, 9, "all") == values_of(map_reduce(5))[9, "all"]
        assert await c.get(session, run, 2, "part") == values_of(map_reduce(5))[2, "part"]

    clients(use)


def test_an_error_reaches_dependent_gets_with_step_and_cause() -> None:
    async def use(c: Clients) -> None:
        body = chain(3)
        for step in body["streams"][0]["steps"]:
            step["at"] = ["p.py", step["number"]]
        c.calls.broken["part 1"] = EngineLost("its process died")
        session, run = await c.submit(body)
        gets = [asyncio.ensure_future(c.get(session, run, 5, "x2")) for _ in range(3)]
        with pytest.raises(RequestError) as caught:
            await c.get(session, run, 3, "x1")
        assert caught.value.code == "engine_lost"
        assert "step 3 (gen 'x1') at p.py:3: the engine has stopped: its process" in str(
            caught.value
        )
        for get in gets:
            with pytest.raises(RequestError, match=r"step 5 .* at p.py:5 has no value, because of "
                                                   r"step 3 \(gen 'x1'\) at p.py:3"):  # fmt: skip
                await get
        assert await c.get(session, run, 1, "x0")
        events = await c.events(session, run)
        failed = [event for event in events if event["event"] == "failed"]
        assert [(e["step"], e["cause_step"], e["code"]) for e in failed] == [
            (3, 3, "engine_lost"), (5, 3, "engine_lost"),
        ]  # fmt: skip
        assert failed[0]["at"] == ["p.py", 3]
        assert events[-1] == {"event": "end", "state": "failed"}

    clients(use)


def test_an_error_crosses_submissions() -> None:
    async def use(c: Clients) -> None:
        session = c.service.sessions.open("")
        c.calls.broken["part 0"] = RequestError("too long", code="context_length_exceeded")
        _, first = await c.submit(chain(1), session)
        ref = {"op": "value", "of": {"var": first.variables[1, "x0"].id}}
        _, second = await c.submit(graph(stream(0, ref, gen("y"))), session)
        with pytest.raises(RequestError, match="because of step 1") as caught:
            await c.get(session, second, 1, "y")
        assert caught.value.code == "context_length_exceeded"
        assert first.application is second.application

    clients(use)


def test_a_cancel_covers_what_only_the_cancelled_wanted() -> None:
    """x is read by the cancelled y alone, z by y and by w."""

    async def use(c: Clients) -> None:
        c.calls.held = asyncio.Event()
        body = graph(
            stream(0, value(1000, "x"), value(2000, "z"), gen("y")),
            stream(1, gen("x"), begin={"call": "g"}),
            stream(2, gen("z"), begin={"call": "g"}),
            stream(3, value(2000, "z"), gen("w"), begin={"call": "g"}),
        )
        session, run = await c.submit(body)
        await until(lambda: c.calls.open == 2)
        assert c.cancel(session, semantic_var_id=run.variables[2, "y"].id)
        await until(lambda: c.calls.open == 1)
        c.calls.held.set()
        assert await c.get(session, run, 3001, "w")
        with pytest.raises(RequestError, match="it was cancelled") as caught:
            await c.get(session, run, 1000, "x")
        assert caught.value.code == "conflict"
        assert run.states == {1000: "cancelled", 2: "cancelled", 2000: "done", 3001: "done"}
        assert not c.cancel(session, semantic_var_id=run.variables[2, "y"].id)
        assert (await c.events(session, run))[-1]["state"] == "cancelled"

    clients(use)


def test_a_value_that_is_awaited_survives_a_cancel_of_its_reader() -> None:
    async def use(c: Clients) -> None:
        c.calls.held = asyncio.Event()
        session, run = await c.submit(chain(2))
        get = asyncio.ensure_future(c.get(session, run, 1, "x0"))
        await until(lambda: c.calls.open == 1)
        c.cancel(session, semantic_var_id=run.variables[3, "x1"].id)
        c.calls.held.set()
        assert await get == values_of(chain(2))[1, "x0"]

    clients(use)


@pytest.mark.parametrize("followed", [False, True])
def test_siblings_of_a_failed_branch_end_unless_followed(followed: bool) -> None:
    async def use(c: Clients) -> None:
        c.calls.broken, c.calls.held = {"chunk 0": RequestError("no")}, asyncio.Event()
        session, run = await c.submit(map_reduce(3))
        follower = asyncio.ensure_future(c.events(session, run)) if followed else None
        await until(lambda: run.states.get(7) is not None or run.over)
        assert c.calls.open == (2 if followed else 0)
        c.calls.held.set()
        await until(lambda: run.over)
        other = "done" if followed else "cancelled"
        assert run.states == {1001: "failed", 2001: other, 3001: other, 7: "failed"}
        if follower is not None:
            await follower

    clients(use)


def test_a_get_times_out_and_may_be_repeated() -> None:
    async def use(c: Clients) -> None:
        c.calls.held = asyncio.Event()
        session, run = await c.submit(chain(1))
        with pytest.raises(GetTimeout, match="The variable"):
            await c.get(session, run, 1, "x0", timeout=0.01)
        c.calls.held.set()
        assert await c.get(session, run, 1, "x0", timeout=10)

    clients(use)


def test_an_input_is_set_later_and_an_output_binds_a_variable() -> None:
    async def use(c: Clients) -> None:
        session = c.service.sessions.open("")
        body = {"prompt": "Test {{code}}: {{test}}", "session_id": session.id, "placeholders": [
            {"name": "code", "in_out": False}, {"name": "test", "in_out": True}]}  # fmt: skip
        _, tests = await c.service.submit(convert(body, SubmitBody), ANYBODY)
        code = tests.inputs["code"].id
        maker = {"prompt": "Write {{code}}", "session_id": session.id, "placeholders": [
            {"name": "code", "in_out": True, "semantic_var_id": code}]}  # fmt: skip
        _, writes = await c.service.submit(convert(maker, SubmitBody), ANYBODY)
        await until(lambda: tests.over)
        assert c.calls.prompts == ["Write ", f"Test {reply('Write ')}: "]
        assert tests.application is writes.application
        with pytest.raises(RequestError, match="two calls cannot make it"):
            await c.service.submit(convert(maker, SubmitBody), ANYBODY)

    clients(use)


def test_two_outputs_of_one_variable_are_refused() -> None:
    async def use(c: Clients) -> None:
        session = c.service.sessions.open("")
        body = {"prompt": "{{a}}: {{b}}", "session_id": session.id, "placeholders": [
            {"name": "a", "in_out": False}, {"name": "b", "in_out": True}]}  # fmt: skip
        _, run = await c.service.submit(convert(body, SubmitBody), ANYBODY)
        both = [{"name": name, "in_out": True, "semantic_var_id": run.inputs["a"].id}
                for name in "xy"]  # fmt: skip
        body = {"prompt": "{{x}} {{y}}", "session_id": session.id, "placeholders": both}
        with pytest.raises(RequestError, match="outputs 'x' and 'y' have the same"):
            await c.service.submit(convert(body, SubmitBody), ANYBODY)
        assert len(session.runs) == 1

    clients(use)


def test_a_long_prompt_is_expanded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def watched(*args: Any) -> Submission:
        threads.append(threading.current_thread() is threading.main_thread())
        return submission_of(*args)

    monkeypatch.setattr(program_service, "submission_of", watched)

    async def use(c: Clients) -> None:
        for prompt in ("{{x}}", "{{x}} " * 2000):
            x = {"name": "x", "in_out": False, "value": "v"}
            body = {"prompt": prompt, "placeholders": [x]}
            await c.service.submit(convert(body, SubmitBody), ANYBODY)
        assert threads == [True, False]
        body["prompt"] = "{{x}}" * 10_000
        with pytest.raises(RequestError, match="--max-program-steps"):
            await c.service.submit(convert(body, SubmitBody), ANYBODY)

    clients(use)


def test_a_cycle_over_submissions_is_refused() -> None:
    async def use(c: Clients) -> None:
        session = c.service.sessions.open("")
        body = {"prompt": "{{a}} {{b}}", "session_id": session.id, "placeholders": [
            {"name": "a", "in_out": False}, {"name": "b", "in_out": True}]}  # fmt: skip
        _, run = await c.service.submit(convert(body, SubmitBody), ANYBODY)
        b = next(v.id for v in run.variables.values())
        back = {"prompt": "{{b}} {{a}}", "session_id": session.id, "placeholders": [
            {"name": "b", "in_out": False, "semantic_var_id": b},
            {"name": "a", "in_out": True, "semantic_var_id": run.inputs["a"].id}]}  # fmt: skip
        with pytest.raises(RequestError, match="its own prompt waits for"):
            await c.service.submit(convert(back, SubmitBody), ANYBODY)
        assert len(session.runs) == 1

    clients(use)


def test_hints_say_application_stage_and_group() -> None:
    async def use(c: Clients) -> None:
        _, run = await c.submit(map_reduce(3), criteria={"all": "latency"})
        await until(lambda: run.over)
        assert [(h.kind, h.stage, h.group) for h in c.calls.hints] == [
            ("latency", 1, 0), ("latency", 1, 0), ("latency", 1, 0), ("latency", 0, -1),
        ]  # fmt: skip
        assert len({hint.program for hint in c.calls.hints}) == 1
        assert [len(place.prefixes) for place in c.calls.sites] == [1, 1, 1, 5]

    clients(use)


def test_a_later_get_raises_the_calls_to_come() -> None:
    async def use(c: Clients) -> None:
        c.calls.held = asyncio.Event()
        session, run = await c.submit(chain(3), criteria={"x2": "throughput"})
        await until(lambda: c.calls.open == 1)
        get = asyncio.ensure_future(c.get(session, run, 5, "x2", criteria="latency"))
        await asyncio.sleep(0)
        c.calls.held.set()
        await get
        assert [hint.kind for hint in c.calls.hints] == ["throughput", "latency", "latency"]
        assert [hint.stage for hint in c.calls.hints] == [-1, 1, 0]

    clients(use)


def test_objectives_are_deduced_over_a_bounded_number_of_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """30 calls read a list of 30: 900 edges over two small submissions."""
    count = 30
    reads = [
        stream(i, value_of, gen("y"), begin={"call": "g"} if i else None)
        for i, value_of in enumerate([{"op": "value", "of": {"argument": "all"}}] * count)
    ]

    async def use(c: Clients) -> None:
        c.calls.held = asyncio.Event()
        session, first = await c.submit(map_reduce(count), c.service.sessions.open(""))
        gathered = first.variables[2, "part"].id
        body = graph(*reads, all={"var": gathered})
        _, second = await c.submit(body, session, criteria={"*": "latency"})
        application = session.application_of(second)
        assert first.application is application
        assert application.labels()[first.id, 1001].group == 0
        monkeypatch.setattr(application_module, "MOST_EDGES", 900)
        application.changed()
        assert not application.labels()
        assert application.hint(first.id, 1001).kind == ""
        assert program_view(second)["calls"][0]["criteria"] == ""

    clients(use)


def test_bound_outputs_and_criteria_of_all_walk_the_graph_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[CheckedProgram] = []
    plain = CheckedProgram.variables

    def variables(program: CheckedProgram) -> dict[str, tuple[int, str]]:
        asked.append(program)
        return plain(program)

    monkeypatch.setattr(CheckedProgram, "variables", variables)
    monkeypatch.delattr(CallGraph, "readers")

    async def use(c: Clients) -> None:
        session = c.service.sessions.open("")
        names = [f"x{i}" for i in range(20)]
        holes = "".join(f"{{{{{name}}}}}" for name in names)
        inputs = [{"name": name, "in_out": False} for name in names]
        body = {"prompt": holes, "placeholders": inputs, "session_id": session.id}
        _, run = await c.service.submit(convert(body, SubmitBody), ANYBODY)
        body["placeholders"] = [
            {"name": name, "in_out": True, "semantic_var_id": run.inputs[name].id} for name in names
        ]
        wished = {**body, "criteria": {"*": "latency"}}
        _, maker = await c.service.submit(convert(wished, SubmitBody), ANYBODY)
        assert [v.criteria.level for v in maker.variables.values()] == [0] * 19 + [3]
        assert len(asked) <= 3  # for the bindings, the check of the criteria, and the criteria

    clients(use)


def test_a_session_expires_with_all_that_it_has() -> None:
    async def use(c: Clients) -> None:
        c.calls.held = asyncio.Event()
        session, run = await c.submit(chain(2))
        get = asyncio.ensure_future(c.get(session, run, 3, "x1"))
        await until(lambda: c.calls.open == 1)
        c.timers.advance(1000)
        assert session.open  # a get is being answered
        get.cancel()
        await asyncio.gather(get, return_exceptions=True)
        follower = run.variables[3, "x1"]
        c.timers.advance(599)
        assert session.open
        c.timers.advance(2)
        assert not session.open
        await until(lambda: run.over)
        assert c.calls.open == 0
        assert follower.failure is not None
        assert follower.failure.code == "expired"
        assert not c.service.sessions.tenants
        assert c.timers.waiting == 0
        with pytest.raises(RequestError) as caught:
            await c.get(session, run, 3, "x1")
        assert caught.value.code == "not_found"

    clients(use)


def test_submissions_and_repetitions_are_uses_of_a_session() -> None:
    async def use(c: Clients) -> None:
        session = c.service.sessions.open("")
        for _ in range(3):
            c.timers.advance(400)
            _, run = await c.submit(chain(1), session, idempotency_key="k")
        free, _ = await c.submit(chain(1), idempotency_key="k")
        for _ in range(3):
            c.timers.advance(400)
            await c.submit(chain(1), idempotency_key="k")
        assert not session.open
        assert free.open
        await until(lambda: run.over)

    clients(use)


def test_text_grows_for_a_stream_as_long_as_it_is_followed() -> None:
    async def use(c: Clients) -> None:
        c.calls.held = asyncio.Event()
        session, run = await c.submit(chain(2), stream=True, grown=True)
        assert run.log.growers == 1  # before its first call begins
        events = c.service.events(session, run, True)
        await anext(events)
        assert run.log.growers == 1
        other = c.service.events(session, run, True)
        await anext(other)
        assert run.log.growers == 2
        await events.aclose()
        await other.aclose()
        assert run.log.growers == 0
        run.cancel()
        await until(lambda: run.over)

    clients(use)


def test_the_same_key_is_one_submission() -> None:
    async def use(c: Clients) -> None:
        session = c.service.sessions.open("")
        _, first = await c.submit(chain(1), session, idempotency_key="k")
        _, again = await c.submit(chain(1), session, idempotency_key="k")
        assert again is first
        with pytest.raises(RequestError, match="another submission") as caught:
            await c.submit(chain(2), session, idempotency_key="k")
        assert caught.value.code == "conflict"
        _, free = await c.submit(chain(1), idempotency_key="k")
        _, same = await c.submit(chain(1), idempotency_key="k")
        assert free is same is not first
        for each in list(c.service.sessions.all()):
            c.service.sessions.close(each)
        assert not c.service.sessions.tenants

    clients(use)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_program_sessions": 1}, "--max-program-sessions"),
        ({"max_program_variables": 3}, "--max-program-variables"),
        ({"max_program_value_bytes": 100}, "--max-program-value-bytes"),
    ],
)
def test_quotas_name_their_flag(limits: dict[str, int], message: str) -> None:
    async def use(c: Clients) -> None:
        _, run = await c.submit(chain(2))
        await until(lambda: run.over)
        with pytest.raises(RequestError, match=message) as caught:
            await c.submit(chain(2))
        assert caught.value.code == "queue_full"

    clients(use, **limits)


def test_tenants_see_nothing_of_each_other() -> None:
    async def use(c: Clients) -> None:
        session, run = await c.submit(chain(1))
        other = Caller(tenant="other", admin=False)
        id = run.variables[1, "x0"].id
        bodies = [convert({"session_id": session.id, "semantic_var_id": id}, GetBody)]
        with pytest.raises(RequestError) as caught:
            await c.service.get(bodies[0], other)
        assert caught.value.code == "not_found"
        with pytest.raises(RequestError, match="no session"):
            c.service.cancel(
                convert({"session_id": session.id, "semantic_var_id": id}, CancelBody), other
            )
        body = {"graph": chain(1), "session_id": session.id}
        with pytest.raises(RequestError, match="no session"):
            await c.service.submit(convert(body, SubmitBody), other)
        ref = {"op": "value", "of": {"var": id}}
        given = {"graph": graph(stream(0, ref))}
        with pytest.raises(RequestError) as caught:
            await c.service.submit(convert(given, SubmitBody), other)
        assert caught.value.code == "not_found"

    clients(use)


def test_many_programs_cost_a_bounded_number_of_turns() -> None:
    """Many programs alive: each call is made once, and each event is logged once."""

    async def use(c: Clients) -> None:
        count, length, before = 1000 if LONG else 200, 4, asyncio.all_tasks()
        for _ in range(count):
            await c.submit(chain(length))
        runs = [run for session in c.service.sessions.all() for run in session.runs.values()]
        await until(lambda: all(run.over for run in runs))
        assert len(c.calls.prompts) == count * length
        assert sum(len(run.log._events) for run in runs) == count * (2 * length + 1)
        assert asyncio.all_tasks() == before

    clients(use)
