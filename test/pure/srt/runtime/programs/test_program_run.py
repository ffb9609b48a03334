"""Runs of programs over scripted calls: order, failures, cancels, hints, what is computed ahead."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
from helpers.program_graphs import (
    Plain,
    branch,
    chain,
    fork,
    gen,
    graph,
    join,
    map_reduce,
    stream,
    text,
    transform,
    value,
)
from helpers.program_oracle import values_of
from helpers.scripted_calls import ManualTimers, ScriptedCalls, reply
from sglang.srt.config.applications_section import ApplicationsConfig
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY, Caller
from sglang.srt.runtime.programs.program_bodies import (
    CancelBody,
    GetBody,
    SetBody,
    SubmitBody,
)
from sglang.srt.runtime.programs.program_run import ProgramRun
from sglang.srt.runtime.programs.program_service import GetTimeout, ProgramService
from sglang.srt.runtime.programs.program_sessions import ProgramSession, ProgramSessions
from sglang.srt.runtime.programs.run_tools import RunTools
from sglang.srt.runtime.request_fields import convert

T = TypeVar("T")
APPEND = "concate_and_append"


class Clients:
    """A service over scripted calls, and the requests of its clients."""

    def __init__(self, ahead: int = 0, **limits: Any) -> None:
        self.calls, self.timers = ScriptedCalls(random.Random(0)), ManualTimers()
        config = ApplicationsConfig(**limits)
        tools = RunTools(
            self.calls, lambda chars: None, config.max_program_value_bytes, lambda: None, ahead
        )
        clock = self.timers.clock
        sessions = ProgramSessions(config, clock, self.timers.later)
        self.service = ProgramService(config, tools, 1000, sessions, clock)

    async def submit(
        self, body: Plain, session: ProgramSession | None = None, **more: Any
    ) -> tuple[ProgramSession, ProgramRun]:
        given = {"graph": body, "session_id": session.id if session else None, **more}
        return await self.service.submit(convert(given, SubmitBody), ANYBODY)

    async def get(
        self, session: ProgramSession, run: ProgramRun, step: int, name: str, **more: Any
    ) -> Any:
        id = run.variables[step, name].id
        body = {"session_id": session.id, "semantic_var_id": id, **more}
        return await self.service.get(convert(body, GetBody), ANYBODY)

    def set(self, session: ProgramSession, id: str, value: Any) -> None:
        body = {"session_id": session.id, "semantic_var_id": id, "value": value}
        self.service.set(convert(body, SetBody), ANYBODY)

    def cancel(self, session: ProgramSession, **what: str) -> bool:
        return self.service.cancel(convert({"session_id": session.id, **what}, CancelBody), ANYBODY)

    async def events(self, session: ProgramSession, run: ProgramRun) -> list[dict[str, Any]]:
        found = self.service.events(session, run, False)
        return [msgspec.json.decode(event) async for event in found]


def clients(use: Callable[[Clients], Awaitable[T]], **options: Any) -> T:
    async def main() -> T:
        return await asyncio.wait_for(use(Clients(**options)), 20)

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


def test_a_chain_is_one_submit_and_reads_what_came_before() -> None:
    async def use(c: Clients) -> None:
        session, run = await c.submit(chain(3))
        found = await c.get(session, run, 5, "x2")
        assert found == values_of(chain(3))[5, "x2"]
        assert [event["event"] for event in await c.events(session, run)] == [
            "started", "done", "started", "done", "started", "done", "end",
        ]  # fmt: skip

    clients(use)


def test_a_second_output_of_a_prompt_reads_the_right_text() -> None:
    async def use(c: Clients) -> None:
        body = {"prompt": "A {{x}} B {{o1}} C {{o2}}", "placeholders": [
            {"name": "x", "in_out": False, "value": "in"}, {"name": "o1", "in_out": True},
            {"name": "o2", "in_out": True}]}  # fmt: skip
        _, run = await c.service.submit(convert(body, SubmitBody), ANYBODY)
        await until(lambda: run.over)
        first = "A in B "
        assert c.calls.asked == [first, f"{first}{reply(first)} C "]

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


def test_an_error_reaches_every_dependent_get_with_step_line_and_cause() -> None:
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


def test_a_failed_transform_is_an_error_of_its_step() -> None:
    async def use(c: Clients) -> None:
        body = graph(stream(0, gen("x"), transform("y", 0, "x", {"op": "number"})))
        session, run = await c.submit(body)
        with pytest.raises(RequestError, match=r"step 1 \(transform 'y'\): transform 'number'"):
            await c.get(session, run, 1, "y")

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
def test_siblings_of_a_failed_branch_end_unless_the_run_is_followed(followed: bool) -> None:
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


def test_inputs_and_tools_of_the_client_are_set() -> None:
    async def use(c: Clients) -> None:
        tool = {"op": "tool", "name": "t", "tool": "calc", "of": {"step": 0, "name": "x"}}
        session, run = await c.submit(graph(stream(0, gen("x"), tool, gen("y"))))
        await until(lambda: b"waiting" in b"".join(map(bytes, run.log._events)))
        id = run.variables[1, "t"].id
        with pytest.raises(RequestError, match="must be a text"):
            c.set(session, id, 4)
        with pytest.raises(RequestError, match="is made by step 0"):
            c.set(session, run.variables[0, "x"].id, "no")
        c.set(session, id, "42")
        c.set(session, id, "42")
        with pytest.raises(RequestError, match="has been set"):
            c.set(session, id, "43")
        await c.get(session, run, 2, "y")
        assert c.calls.asked[1] == f"{reply('')}42"
        waiting = [e for e in await c.events(session, run) if e["event"] == "waiting"]
        assert waiting == [{"event": "waiting", "step": 1, "tool": "calc", "of": reply(""),
                            "semantic_var_id": id}]  # fmt: skip

    clients(use)


def test_a_tool_that_is_late_fails_its_step() -> None:
    async def use(c: Clients) -> None:
        tool = {"op": "tool", "name": "t", "tool": "calc", "timeout": 0.01}
        session, run = await c.submit(graph(stream(0, tool)))
        with pytest.raises(RequestError, match="has not answered in") as caught:
            await c.get(session, run, 0, "t")
        assert caught.value.code == "expired"

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
        assert c.calls.asked == ["Write ", f"Test {reply('Write ')}: "]
        assert tests.application is writes.application
        with pytest.raises(RequestError, match="two calls cannot make it"):
            await c.service.submit(convert(maker, SubmitBody), ANYBODY)

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
        assert [len(place.prefixes) for place in c.calls.places] == [1, 1, 1, 5]

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


def test_known_text_is_computed_while_a_value_grows() -> None:
    async def use(c: Clients) -> None:
        long = "read this " * 8
        body = graph(
            stream(0, text(long), value(1000, "x"), gen("y")),
            stream(1, gen("x"), begin={"call": "g"}),
        )
        session, run = await c.submit(body)
        await c.get(session, run, 2, "y")
        assert c.calls.ahead[0] == long
        assert all((long + reply("")).startswith(each) for each in c.calls.ahead)
        assert len(c.calls.ahead) <= 1 + len(reply("")) // 4

    clients(use, ahead=4)


def test_nothing_is_computed_ahead_where_that_is_off() -> None:
    async def use(c: Clients) -> None:
        _, run = await c.submit(map_reduce(3))
        await until(lambda: run.over)
        assert not c.calls.ahead

    clients(use, ahead=0)


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


def test_a_value_that_refers_to_itself_many_times_is_refused() -> None:
    """2^30 entries by 30 steps: refused by its size before it is made."""

    async def use(c: Clients) -> None:
        steps = [{"op": "set", "name": "s", "value": ["aaaa"]}]
        for i in range(30):
            ref = {"step": i, "name": "s"}
            steps.append({"op": "set", "name": "s", "value": [ref, ref]})
        session, run = await c.submit(graph(stream(0, *steps)))
        with pytest.raises(RequestError, match="the list has more than"):
            await c.get(session, run, 30, "s")

    clients(use)


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


def test_a_join_appends_branches_side_by_side() -> None:
    async def use(c: Clients) -> None:
        body = graph(
            stream(
                0, text("p "), fork(1, 2), join(1001, 2000, mode="concate_and_append"), gen("y")
            ),
            branch(1, 1, 0, text("a"), gen("x")),
            branch(2, 1, 1, text("b")),
        )
        session, run = await c.submit(body)
        await c.get(session, run, 3, "y")
        assert c.calls.asked[-1] == str(["p ", [f"a{reply('p a')}", "b"], ""])

    clients(use)


def test_many_programs_cost_a_bounded_number_of_turns() -> None:
    """1,000 programs alive: each call is made once, and each event is logged once."""

    async def use(c: Clients) -> None:
        count, length, before = 1000, 4, asyncio.all_tasks()
        for _ in range(count):
            await c.submit(chain(length))
        runs = [run for session in c.service.sessions.all() for run in session.runs.values()]
        await until(lambda: all(run.over for run in runs))
        assert len(c.calls.asked) == count * length
        assert sum(len(run.log._events) for run in runs) == count * (2 * length + 1)
        assert asyncio.all_tasks() == before

    clients(use)
