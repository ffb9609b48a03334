"""ProgramSandbox: uploaded programs of a server, their runs, and the host that they run in."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from sglang.srt.inferlet.controller import Controller
from sglang.srt.inferlet.host.host_messages import GuestImage
from sglang.srt.inferlet.host.host_process import HostProcess, HostRun
from sglang.srt.inferlet.inferlet_run import InferletRun
from sglang.srt.inferlet.inferlet_session import InferletSession
from sglang.srt.inferlet.leases import Leases
from sglang.srt.inferlet.program_limits import Rights
from sglang.srt.inferlet.sandbox.run_limits import RunLimits
from sglang.srt.inferlet.sandbox.run_record import RunRecord
from sglang.srt.inferlet.sandbox.sandbox_driver import SandboxDriver
from sglang.srt.inferlet.sandbox.uploads import LANGUAGES, Language, UploadedProgram, Uploads
from sglang.srt.inferlet.served import RunFollower
from sglang.srt.requests.request_error import RequestError

KEPT = 256  # runs of a tenant that have ended and may still be read
KEPT_BYTES = 64 << 20  # bytes of their events, about
Body = dict[str, Any]


@dataclass(frozen=True)
class RunOrder:
    """A run that is to start.

    Attributes:
        complete: answers a body of ``/generate`` for the tenant that runs it.
        seed: random bytes follow from it; empty: another one for each run.
    """

    program: UploadedProgram
    arguments: Sequence[str]
    rights: Rights
    limits: RunLimits
    complete: Callable[[Body], Awaitable[Body]]
    seed: bytes = b""


class ProgramSandbox:
    """Every method belongs to the server's event loop.

    Args:
        controller: the controller of the engine that serves now.
        host: started by the caller, which stops it too.
        runners: the precompiled runners that there are, by language.
        most: runs that one tenant may have at a time.
    """

    def __init__(
        self,
        controller: Callable[[], Controller],
        host: HostProcess,
        uploads: Uploads,
        runners: Mapping[Language, Path],
        most: int,
    ) -> None:
        self._controller, self._host, self.uploads = controller, host, uploads
        self._runners, self._most = runners, most
        self._runs: dict[str, RunRecord] = {}
        self._sessions: dict[str, InferletSession] = {}
        self._counts = dict.fromkeys(("launched", "failed", "turns", "cpu"), 0.0)

    def launch(self, order: RunOrder) -> RunRecord:
        """Start a run. Raises RequestError where the tenant has too many, or no runner is there."""
        owner, limits = order.rights.owner, order.limits
        self._admit(owner)
        language = order.program.language
        if language is not None and language not in self._runners:
            raise RequestError(
                f"This server has no runner of {LANGUAGES[language]}; its operator builds one by "
                "`sglang inferlet runner`.",
                code="unsupported",
            )
        record = RunRecord(f"run_{uuid.uuid4().hex}", order.program.id, owner, limits.backlog)
        follower = RunFollower(record.message, record.log)
        session = self._controller().open(
            order.arguments, order.rights, limits.of_program(), follower
        )
        session.parts.served = replace(session.parts.served, leases=Leases(order.complete))
        image = self._image(order, session)
        run = self._host.launch(image, limits.of_guest(), owner)
        wall = asyncio.get_running_loop().call_later(
            limits.wall, session.stop, f"wall: the run has taken its {limits.wall:g} s of time"
        )
        record.stop = session.stop
        order.program.runs += 1

        def end(error: str) -> None:
            order.program.run_ended()
            self._ended(record, session, run, wall, error)

        follower.end = end
        self._runs[record.id], self._sessions[record.id] = record, session
        self._counts["launched"] += 1
        record.emit("started", run=record.id, inferlet=record.program)
        InferletRun(self._controller(), session, SandboxDriver(self._host, run)).start()
        return record

    def get(self, owner: str, run: str) -> RunRecord:
        """A tenant's run. Raises RequestError ``not_found``."""
        found = self._runs.get(run)
        if found is None or found.owner != owner:
            raise RequestError(f"There is no run {run!r:.80}.", code="not_found")
        return found

    def all(self, owner: str) -> list[RunRecord]:
        """The runs of a tenant, oldest first."""
        return [run for run in self._runs.values() if run.owner == owner]

    def send(self, owner: str, run: str, message: str | bytes) -> None:
        """Send a message to a run. Raises RequestError where it has ended, or reads too slowly."""
        record = self.get(owner, run)
        session = self._sessions.get(record.id)
        if session is None:
            raise RequestError(f"The run {run} has ended.", code="conflict")
        try:
            session.mail_in(message)
        except ValueError as error:
            raise RequestError(f"The run takes no message: {error}.", code="conflict") from None

    def end(self, owner: str, run: str) -> RunRecord:
        """End a run, and forget it. Raises RequestError ``not_found``."""
        record = self.get(owner, run)
        session = self._sessions.get(record.id)
        if session is not None:
            session.stop("the run was ended by its client")
        self._runs.pop(record.id, None)
        return record

    def counts(self) -> dict[str, float]:
        """Numbers of runs and of their turns, and seconds of their processor time."""
        return {
            **self._counts,
            "cpu": self._counts["cpu"] + self._host.late_cpu,
            "running": len(self._sessions),
            "restarts": self._host.restarts,
        }

    def close(self) -> None:
        """End all runs, and remove the programs' files."""
        for session in tuple(self._sessions.values()):
            session.stop("the server ends")
        self.uploads.close()

    def _admit(self, owner: str) -> None:
        own = self.all(owner)
        running = sum(run.status == "running" for run in own)
        if running >= self._most:
            raise RequestError(
                f"There are {running} runs already (--inferlet-max-runs); wait for one, or end it.",
                code="rate_limit_exceeded",
            )
        ended = [run for run in own if run.status != "running"]
        held = sum(run.size for run in ended)
        for position, run in enumerate(ended):
            if len(ended) - position < KEPT and held <= KEPT_BYTES:
                break
            held -= run.size
            del self._runs[run.id]

    def _image(self, order: RunOrder, session: InferletSession) -> GuestImage:
        program = order.program
        arguments = msgspec.json.encode(session.parts.facts).decode()
        seed = order.seed or secrets.token_bytes(16)
        if program.language is None:
            return GuestImage(program.path, program.kind == "component", "", arguments, seed)
        runner = str(self._runners[program.language])
        return GuestImage(runner, True, program.source, arguments, seed)

    def _ended(
        self,
        record: RunRecord,
        session: InferletSession,
        run: HostRun,
        wall: asyncio.TimerHandle,
        error: str,
    ) -> None:
        wall.cancel()
        self._sessions.pop(record.id, None)
        outcome = session.parts.outcome
        if not error and not record.emit("result", value=outcome.value):
            error = "backlog: the result has more bytes than the limit backlog leaves"
        self._counts["failed"] += bool(error)
        self._counts["turns"] += run.turns
        self._counts["cpu"] += run.cpu
        usage = {"turns": run.turns, "cpu_seconds": round(run.cpu, 6), "calls": outcome.calls}
        record.end(error, usage)
