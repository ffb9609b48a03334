"""ServerSession: a session of a runtime that runs programs, opened when it is first used."""

from __future__ import annotations

import asyncio
import atexit
import weakref
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from sglang.backend.base import Backend
from sglang.backend.loop_thread import LoopThread
from sglang.errors import BackendError, Unsupported

MOST_PROGRAMS = 256  # limit of the submissions to one session
LOOP = LoopThread()
"""Event loop of all submissions of this process."""
atexit.register(LOOP.close)  # cancels programs that still run, while the loop exists


@runtime_checkable
class ProgramTransport(Protocol):
    """A runtime that runs whole programs. Paths and bodies are those of the HTTP interface."""

    async def program_call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a POST. Raise BackendError."""

    async def close_program_session(self, session_id: str) -> None:
        """End a session. Raise BackendError."""

    def program_events(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of the answer to a POST. Raise BackendError."""


def service_of(backend: Backend) -> ProgramTransport:
    """Return ``backend``. Raise Unsupported if the backend does not run whole programs."""
    if isinstance(backend, ProgramTransport):
        return backend
    raise Unsupported(
        f"the {type(backend).__name__} backend runs no programs on a server; use "
        "sglang.RuntimeEndpoint('http://HOST:PORT'), or run without on='server'"
    )


class ServerSession:
    """A session of a runtime, opened at its first use. A variable of one submission can be an
    argument of other submissions to the same session.

    Args:
        backend: a runtime of this project. Raises Unsupported for any other backend.

    Attributes:
        count: number of submitted programs. programs: submitted programs that are still alive.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.service = service_of(backend)
        self.count = 0
        self.programs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._opening: asyncio.Task[str] | None = None
        self._known = ""  # id of the open session

    def note(self, program: Any) -> None:
        """Count a program that is submitted to this session."""
        self.count += 1
        self.programs.add(program)

    async def close(self) -> None:
        """End the session on the server, which frees its variables."""
        if self._opening is not None:
            with suppress(BackendError):  # the server ends it later
                await self.service.close_program_session(await self.id())

    async def id(self) -> str:
        """Return the session's id. Opens the session if needed. Raises BackendError."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        try:
            return await asyncio.shield(self._opening)
        except Exception:
            self._opening = None  # the next submission tries again
            raise

    async def _open(self) -> str:
        self._known = str((await self.service.program_call("/v1/session", {}))["session_id"])
        return self._known

    def forget(self, known: str) -> None:
        """Note that the session ``known`` has expired on the server. The next submission opens a
        new session, unless one was opened already."""
        if self._known == known:
            self._opening, self._known = None, ""


_OWN = "_program_session"  # attribute of a backend; a global table would keep backends alive
_FULL: list[ServerSession] = []  # sessions that take no more submissions


def session_of(backend: Backend) -> ServerSession:
    """Return the session of this process's submissions to ``backend``. Raise Unsupported.

    After ``MOST_PROGRAMS`` submissions a new session is opened, because a server limits the
    variables of a session. The full session is closed when none of its programs is alive.
    """
    for full in [session for session in list(_FULL) if not session.programs]:
        _FULL.remove(full)
        LOOP.start(full.close)
    found: ServerSession | None = vars(backend).get(_OWN)
    if found is not None and found.count >= MOST_PROGRAMS:
        _FULL.append(found)
        found = None
    if found is None:
        found = vars(backend)[_OWN] = ServerSession(backend)
    return found
