"""EnginePrograms: submission of whole programs to the runtime in this process, as over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sglang.backend.engine.engine_control import EngineControl

if TYPE_CHECKING:
    from sglang.srt.runtime.programs.program_service import ProgramService

T = TypeVar("T")


class EnginePrograms(EngineControl):
    """``program_call`` and ``program_events``, with the bodies of the HTTP interface."""

    _service: ProgramService | None = None

    def _aiterate(self, make: Callable[[], AsyncGenerator[T, None]]) -> AsyncIterator[T]:
        """Yield the items of a generator that runs on the engine's loop, in the caller's event
        loop. Raises BackendError."""
        raise NotImplementedError

    async def program_call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a POST about programs. Raises BackendError."""
        return await self._awaiting(partial(self._program_answer, path, body))

    async def close_program_session(self, session_id: str) -> None:
        """End a session of programs. Raises BackendError."""
        await self._awaiting(partial(_close, self._programs, session_id))

    async def program_events(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of the answer to a POST about a program. Raises BackendError."""
        async for event in self._aiterate(partial(self._program_events, path, body)):
            yield event

    def _programs(self) -> ProgramService:
        """Return the program service of this engine. Called on the engine's loop."""
        from sglang.srt.runtime.programs.program_service import program_service

        if self._service is None:
            self._service = program_service(self._alive(), lambda: None)
        return self._service

    def _program_answer(
        self, path: str, body: dict[str, Any]
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        return _answer(self._programs(), path, body)

    def _program_events(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        return _events(self._programs(), path, body)


async def _close(programs: Callable[[], ProgramService], session_id: str) -> None:
    from sglang.srt.runtime.caller import ANYBODY

    sessions = programs().sessions
    sessions.close(sessions.find(ANYBODY.tenant, session_id))


async def _answer(programs: ProgramService, path: str, body: dict[str, Any]) -> dict[str, Any]:
    from sglang.srt.runtime.caller import ANYBODY
    from sglang.srt.runtime.programs.program_bodies import CancelBody, GetBody, SetBody
    from sglang.srt.runtime.request_fields import convert

    if path == "/v1/session":
        return {"session_id": programs.sessions.open(ANYBODY.tenant).id}
    if path == "/v1/get":
        value = await programs.get(convert(body, GetBody), ANYBODY)
        return {"value": value, "state": "ready"}
    if path == "/v1/set":
        programs.set(convert(body, SetBody), ANYBODY)
        return {"status": "ok"}
    assert path == "/v1/cancel", path
    return {"cancelled": programs.cancel(convert(body, CancelBody), ANYBODY)}


async def _events(
    programs: ProgramService, path: str, body: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    from sglang.srt.runtime.caller import ANYBODY
    from sglang.srt.runtime.programs.program_bodies import GetBody, SubmitBody
    from sglang.srt.runtime.request_fields import convert, plain

    if path == "/v1/submit":
        submit = convert(body, SubmitBody)
        session, run = await programs.submit(submit, ANYBODY)
        yield plain(programs.reply(session, run))
        grown = bool(submit.grown)
    else:
        get = convert(body, GetBody)
        session = programs.sessions.find(ANYBODY.tenant, get.session_id)
        run, grown = session.run(get.submission_id or ""), bool(get.grown)
    async with aclosing(programs.events(session, run, grown)) as events:
        async for event in events:
            yield _plain(event)


def _plain(event: Any) -> dict[str, Any]:
    """Return an event as a dict. All events are JSON bytes except those of growing texts."""
    return event if isinstance(event, dict) else dict(json.loads(bytes(memoryview(event))))
