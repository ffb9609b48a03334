"""Simulated histories of programs: random submits, gets, cancels, failures and expiries over
scripted calls. No get waits for ever, every value is the oracle's, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import msgspec
from helpers.program_graphs import Plain, random_graph
from helpers.program_oracle import values_of
from helpers.scripted_calls import ManualTimers, ScriptedCalls
from sglang.srt.config.applications_section import ApplicationsConfig
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller, RequestSlot
from sglang.srt.runtime.programs.program_bodies import (
    CancelBody,
    GetBody,
    SubmitBody,
)
from sglang.srt.runtime.programs.program_run import ProgramRun
from sglang.srt.runtime.programs.program_service import ProgramService
from sglang.srt.runtime.programs.program_sessions import ProgramSession, ProgramSessions
from sglang.srt.runtime.programs.run_tools import RunTools
from sglang.srt.runtime.request_fields import convert

HISTORIES = int(os.environ.get("PROGRAM_HISTORIES", "240"))
LIMITS = ApplicationsConfig(max_program_sessions=4, program_session_timeout=60)
CRITERIA: list[Any] = [None, "latency", "throughput", {"ttft_ms": 50}, {"tpot_ms": 20}]


class History:
    """One history: a service over scripted calls, clients of two tenants, and what they did."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.timers = ManualTimers()
        self.calls = ScriptedCalls(self.chance, self.chance.choice([0.0, 0.0, 0.1]))
        tools = RunTools(
            self.calls, lambda chars: None, 1 << 20, lambda: None, self.chance.choice([0, 8])
        )
        clock = self.timers.clock
        sessions = ProgramSessions(LIMITS, clock, self.timers.later)
        self.service = ProgramService(LIMITS, tools, 1000, sessions, clock)
        self.released = self.held = 0
        self.gets: list[asyncio.Task[Any]] = []
        self.runs: list[tuple[ProgramSession, ProgramRun, Plain]] = []
        self.cancelled = False

    def caller(self) -> Caller:
        self.held += 1
        return Caller(
            tenant=self.chance.choice(["a", "b"]), admin=False, slot=RequestSlot(self._release)
        )

    def _release(self) -> None:
        self.released += 1

    async def play(self) -> None:
        """Do something at random some times, then let the rest end."""
        acts = [self.submit, self.submit, self.submit, self.get, self.get, self.get, self.cancel,
                self.wait, self.wait, self.leave, self.close, self.expire]  # fmt: skip
        for _ in range(self.chance.randint(4, 16)):
            await self.chance.choice(acts)()
        await self.settle()

    async def submit(self) -> None:
        body = random_graph(self.chance.randrange(1 << 30), self.chance.randint(1, 6))
        own = self.caller()
        sessions = [s for s in self.service.sessions.all() if s.tenant.name == own.tenant]
        session = self.chance.choice([None, *sessions])
        known = [id for s in sessions if s is session for id in s.variables]
        if known:
            ref = {"var": self.chance.choice(known)}
            body["streams"][0]["steps"].insert(0, {"number": 999, "op": "value", "of": ref})
        given = {"graph": body, "session_id": None if session is None else session.id,
                 "criteria": {"*": self.chance.choice(CRITERIA)}}  # fmt: skip
        try:
            found, run = await self.service.submit(convert(given, SubmitBody), own)
        except RequestError as error:
            if error.code not in ("queue_full", "not_found"):  # too many sessions; one was closed
                raise
        else:
            self.runs.append((found, run, body))
            if self.chance.random() < 0.5:
                self.gets.append(asyncio.ensure_future(self.follow(found, run)))
        finally:
            own.slot.release()  # type: ignore[union-attr]

    async def follow(self, session: ProgramSession, run: ProgramRun) -> None:
        async for event in self.service.events(session, run, self.chance.random() < 0.5):
            last = event if isinstance(event, dict) else msgspec.json.decode(event)
        assert last["event"] == "end"

    def some(self) -> tuple[ProgramSession, ProgramRun, str] | None:
        runs = [(s, r) for s, r, _ in self.runs if s.open and r.variables]
        if not runs:
            return None
        session, run = self.chance.choice(runs)
        return session, run, self.chance.choice(list(run.variables.values())).id

    async def get(self) -> None:
        if (chosen := self.some()) is not None:
            session, _, id = chosen
            body = {"session_id": session.id, "semantic_var_id": id,
                    "criteria": self.chance.choice(CRITERIA)}  # fmt: skip
            caller = Caller(tenant=session.tenant.name)
            get = self.service.get(convert(body, GetBody), caller)
            self.gets.append(asyncio.ensure_future(get))
            await asyncio.sleep(0)

    async def cancel(self) -> None:
        if (chosen := self.some()) is None or self.chance.random() < 0.5:
            return
        session, run, id = chosen
        what = {"semantic_var_id": id} if self.chance.random() < 0.7 else {"submission_id": run.id}
        body = convert({"session_id": session.id, **what}, CancelBody)
        self.service.cancel(body, Caller(tenant=session.tenant.name))
        self.cancelled = True

    async def leave(self) -> None:
        """The client of a get goes away."""
        if self.gets:
            self.chance.choice(self.gets).cancel()

    async def wait(self) -> None:
        for _ in range(self.chance.randint(0, 20)):
            await asyncio.sleep(0)

    async def close(self) -> None:
        sessions = list(self.service.sessions.all())
        if sessions and self.chance.random() < 0.3:
            self.service.sessions.close(self.chance.choice(sessions))
            self.cancelled = True

    async def expire(self) -> None:
        if self.chance.random() < 0.5:
            self.timers.advance(self.chance.choice([10, 30, 61]))
            self.cancelled = True

    async def settle(self) -> None:
        """Every get and run comes to its end without help; then the sessions expire."""
        for _ in range(20_000):
            if all(get.done() for get in self.gets) and all(run.over for _, run, _ in self.runs):
                break
            await asyncio.sleep(0)
        else:
            raise AssertionError("a get or a run waits for ever")
        await asyncio.gather(*self.gets, return_exceptions=True)
        self.check()
        for _ in range(3):
            self.timers.advance(LIMITS.program_session_timeout + 1)
        for _ in range(50):
            await asyncio.sleep(0)
        self.check_nothing_is_left()

    def check(self) -> None:
        """Every value is the oracle's; every failure has a cause that failed."""
        given = {v.id: v.value for s, r, _ in self.runs for v in r.variables.values()}
        for _, run, body in self.runs:
            failed = [v for v in run.variables.values() if v.failure is not None]
            assert all(v.settled for v in run.variables.values())
            if not failed:
                expected = values_of(body, given)
                assert {key: v.value for key, v in run.variables.items()} == expected
            for variable in failed:
                cause = variable.failure.cause  # type: ignore[union-attr]
                assert cause.cause is cause
                assert cause.reason
                assert not cause.cancelled or self.cancelled or "nothing needs" in cause.reason

    def check_nothing_is_left(self) -> None:
        assert not self.service.sessions.tenants
        assert self.calls.open == 0
        assert self.timers.waiting == 0
        assert self.released == self.held
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, others
