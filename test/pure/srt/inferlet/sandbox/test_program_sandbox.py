"""Runs of the sandbox that have ended: their result, and how many bytes of them are kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.silent_link import opened
from sglang.srt.inferlet.host.host_messages import GuestImage, GuestLimits
from sglang.srt.inferlet.program_limits import TRUSTED
from sglang.srt.inferlet.sandbox import program_sandbox
from sglang.srt.inferlet.sandbox.program_sandbox import ProgramSandbox, RunOrder
from sglang.srt.inferlet.sandbox.run_limits import RunLimits
from sglang.srt.inferlet.sandbox.run_record import RunRecord
from sglang.srt.inferlet.sandbox.uploads import UploadedProgram


class ReturningGuest:
    """A guest that returns its program's source in its first turn."""

    cpu, turns = 0.0, 1

    def __init__(self, value: str, limits: GuestLimits) -> None:
        self.limits, self._value = limits, value

    async def turn(self, answers: str | None) -> str:
        result = {"call": "set_return", "id": 1, "value": self._value}
        return json.dumps([result, {"call": "exit", "id": 2}])


class ReturningHost:
    """A host of such guests."""

    restarts, late_cpu = 0, 0.0

    def launch(self, guest: GuestImage, limits: GuestLimits, tenant: str) -> ReturningGuest:
        return ReturningGuest(guest.path, limits)

    def end(self, run: ReturningGuest) -> None: ...


async def complete(body: Any) -> Any:
    raise AssertionError("no program has a lease")


def ended_runs(*values: str, backlog: int) -> tuple[ProgramSandbox, list[RunRecord]]:
    """Runs of one tenant, one after the other, which return these values."""

    async def main() -> tuple[ProgramSandbox, list[RunRecord]]:
        controller, _ = opened()
        host: Any = ReturningHost()
        uploads: Any = None
        sandbox = ProgramSandbox(lambda: controller, host, uploads, {}, 4)
        records = []
        for value in values:
            program = UploadedProgram("id", "module", 1, path=value)
            limits = RunLimits(backlog=backlog)
            record = sandbox.launch(RunOrder(program, (), TRUSTED, limits, complete))
            await asyncio.wait_for(record.ended(), 20)
            records.append(record)
        return sandbox, records

    return asyncio.run(main())


def test_a_run_that_has_ended_needs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "1.cwasm"
    path.write_bytes(b"")
    ended_runs(str(path), backlog=1500)  # no tenant has the program any more
    assert not path.exists()


def test_a_result_beyond_the_backlog_fails_the_run_by_name() -> None:
    sandbox, [kept, lost] = ended_runs("x" * 100, "x" * 2000, backlog=1500)
    assert kept.shown()["result"] == "x" * 100
    assert kept.status == "completed"
    assert lost.status == "failed"
    assert lost.shown()["error"].startswith("backlog: the result has more bytes")
    assert sandbox.counts()["failed"] == 1


def test_the_oldest_runs_are_forgotten_beyond_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_sandbox, "KEPT_BYTES", 4000)
    sandbox, records = ended_runs(*["x" * 1500] * 5, backlog=8000)
    assert all(1500 < record.size < 2000 for record in records)
    assert sandbox.all("") == records[2:]  # two of 3,200 bytes, and the new one


def test_the_oldest_runs_are_forgotten_beyond_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_sandbox, "KEPT", 3)
    sandbox, records = ended_runs(*["x"] * 5, backlog=8000)
    assert sandbox.all("") == records[2:]
