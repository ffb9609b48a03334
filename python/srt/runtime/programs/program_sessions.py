"""ProgramSessions: the sessions of all tenants, their variables and runs, their bounds and ends.

A session ends when its client closes it, or when for the timeout no request has named it and none
that named it is still being answered. Its running calls are then cancelled, its values dropped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from sglang.srt.config.applications_section import ApplicationsConfig
from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.runtime.parking.parked_store import Timer, later
from sglang.srt.runtime.programs.application import Application
from sglang.srt.runtime.programs.program_run import ProgramRun
from sglang.srt.runtime.programs.promises import StepFailure
from sglang.srt.runtime.programs.semantic_variables import SemanticVariable

KeyedRun: TypeAlias = "tuple[bytes, ProgramSession, ProgramRun]"


@dataclass(eq=False)
class ProgramTenant:
    """The sessions of one tenant. ``size``: bytes of values and events in all sessions;
    ``variables``: number of variables in all sessions. ``keys``: digest, session and run of each
    submission with an idempotency key, by the session that it names ("" for none) and the key."""

    name: str
    sessions: dict[str, ProgramSession] = field(default_factory=dict)
    keys: dict[tuple[str, str], KeyedRun] = field(default_factory=dict)
    size: int = 0
    variables: int = 0


class ProgramSession:
    """One session.

    Attributes:
        runs: runs by id. keys: the entries of the tenant's ``keys`` that belong to this session.
        used: moment when a request last named the session.
        holders: number of requests on the session that are being answered.
        open: the session has not ended.
    """

    def __init__(self, tenant: ProgramTenant, limits: ApplicationsConfig, used: float) -> None:
        self.id = uuid.uuid4().hex
        self.tenant, self.used, self.holders, self.open = tenant, used, 0, True
        self.variables: dict[str, SemanticVariable] = {}
        self.runs: dict[str, ProgramRun] = {}
        self.keys: list[tuple[str, str]] = []
        self.size = 0
        self.timer: Timer | None = None
        self._limits = limits

    def add(self, variable: SemanticVariable) -> None:
        """Add a variable; the caller has verified the room for it (``verify_room``)."""
        self.variables[variable.id] = variable
        self.tenant.variables += 1

    def verify_room(self, variables: int) -> None:
        """Raise RequestError if there is no room for ``variables`` more variables, or if the bytes
        exceed the limit already."""
        most, held = self._limits.max_program_variables, self.tenant.variables
        if held + variables > most:
            raise RequestError(
                f"The open sessions have {held} variables and this submission {variables}; {most} "
                "may be (--max-program-variables). Close sessions.",
                code="queue_full",
            )
        self.hold(0)

    def hold(self, size: int) -> None:
        """Count the bytes of a new value. Raises RequestError if the tenant's limit is exceeded."""
        most, held = self._limits.max_program_value_bytes, self.tenant.size
        if held + size > most:
            raise RequestError(
                f"The open sessions hold {held} bytes of values and events and this value has "
                f"{size}; {most} may be held (--max-program-value-bytes). Close sessions.",
                code="queue_full",
            )
        self.held(size)

    def held(self, size: int) -> None:
        """Count bytes that exist already, whatever the limit is; they reduce the room for later
        values."""
        if self.open:
            self.size += size
            self.tenant.size += size

    def run_ended(self, run: ProgramRun) -> None:
        """Release the request slot of a run that has ended."""
        if run.caller.slot is not None:
            run.caller.slot.release()

    def application_of(self, run: ProgramRun) -> Application:
        """Return the application of a run of the session."""
        assert isinstance(run.application, Application)
        return run.application

    def variable(self, id: str) -> SemanticVariable:
        """Return the session's variable of this id. Raises RequestError ``not_found``."""
        found = self.variables.get(id)
        if found is None:
            raise RequestError(
                f"The session has no semantic variable {shown(id)}; the answer to its submit has "
                "their ids.",
                "semantic_var_id",
                "not_found",
            )
        return found

    def run(self, id: str) -> ProgramRun:
        """Return the session's run of this id. Raises RequestError ``not_found``."""
        found = self.runs.get(id)
        if found is None:
            raise RequestError(
                f"The session has no submission {shown(id)}.", "submission_id", "not_found"
            )
        return found


class ProgramSessions:
    """The sessions of all tenants; each tenant sees only its own. Belongs to one event loop.

    Args:
        later: schedules a call after a number of seconds.
    """

    def __init__(
        self,
        limits: ApplicationsConfig,
        clock: Clock = SYSTEM_CLOCK,
        later: Callable[[float, Callable[[], None]], Timer] = later,
    ) -> None:
        self._limits, self._clock, self._later = limits, clock, later
        self.tenants: dict[str, ProgramTenant] = {}

    def open(self, owner: str) -> ProgramSession:
        """Open a session. Raises RequestError if the tenant has too many."""
        tenant = self.tenants.get(owner) or ProgramTenant(owner)
        most = self._limits.max_program_sessions
        if len(tenant.sessions) >= most:
            raise RequestError(
                f"{len(tenant.sessions)} sessions of programs are open and {most} may be "
                "(--max-program-sessions); close some.",
                "session_id",
                "queue_full",
            )
        self.tenants[owner] = tenant
        session = ProgramSession(tenant, self._limits, self._clock.now())
        tenant.sessions[session.id] = session
        self._wait(session, self._limits.program_session_timeout)
        return session

    def find(self, owner: str, id: str) -> ProgramSession:
        """Return the tenant's session of this id. Raises RequestError ``not_found``."""
        tenant = self.tenants.get(owner)
        session = None if tenant is None else tenant.sessions.get(id)
        if session is None:
            raise RequestError(
                f"There is no session {shown(id)}; POST /v1/session makes one, and one that no "
                "request names for its timeout (--program-session-timeout) is closed.",
                "session_id",
                "not_found",
            )
        return session

    @contextmanager
    def using(self, session: ProgramSession) -> Iterator[None]:
        """Keep the session open during the block; its timeout begins after the block."""
        session.holders += 1
        try:
            yield
        finally:
            session.holders -= 1
            session.used = self._clock.now()

    def close(self, session: ProgramSession, reason: str = "the session was closed") -> None:
        """End a session and all its runs."""
        if not session.open:
            return
        session.open, tenant = False, session.tenant
        if session.timer is not None:
            session.timer.cancel()
        failure = StepFailure(-1, "", reason, "expired", True)
        for run in session.runs.values():
            run.close(failure)
        for variable in session.variables.values():
            variable.fail(failure)
        for key in session.keys:
            del tenant.keys[key]
        del tenant.sessions[session.id]
        tenant.size -= session.size
        tenant.variables -= len(session.variables)
        if not tenant.sessions:
            del self.tenants[tenant.name]

    def close_all(self) -> None:
        """End all sessions."""
        for tenant in list(self.tenants.values()):
            for session in list(tenant.sessions.values()):
                self.close(session, "the server ends")

    def _look(self, session: ProgramSession) -> None:
        """Close a session whose timeout has passed; otherwise check again when it may have."""
        if not session.open:
            return
        timeout = self._limits.program_session_timeout
        idle = 0.0 if session.holders else self._clock.now() - session.used
        if idle >= timeout:
            self.close(session, "no request named the session for its timeout")
        else:
            self._wait(session, timeout - idle)

    def _wait(self, session: ProgramSession, seconds: float) -> None:
        session.timer = self._later(seconds, lambda: self._look(session))

    def all(self) -> Iterator[ProgramSession]:
        """Yield the open sessions of all tenants."""
        for tenant in self.tenants.values():
            yield from tenant.sessions.values()
