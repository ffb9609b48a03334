"""A service of programs over scripted calls, and the requests of its clients."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from helpers.program_graphs import (
    Plain,
)
from helpers.scripted_calls import ManualTimers, ScriptedCalls
from sglang.srt.config.applications_section import ApplicationsConfig
from sglang.srt.runtime.caller import ANYBODY
from sglang.srt.runtime.programs.program_bodies import (
    CancelBody,
    GetBody,
    SetBody,
    SubmitBody,
)
from sglang.srt.runtime.programs.program_run import ProgramRun
from sglang.srt.runtime.programs.program_service import ProgramService
from sglang.srt.runtime.programs.program_sessions import ProgramSession, ProgramSessions
from sglang.srt.runtime.programs.run_tools import RunTools
from sglang.srt.runtime.request_fields import convert

T = TypeVar("T")


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
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        await asyncio.sleep(0)
