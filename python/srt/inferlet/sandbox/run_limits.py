"""RunLimits: how much a run in the sandbox may use, each limit declared once."""

from __future__ import annotations

from typing import Annotated

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.inferlet.host.host_messages import GuestLimits
from sglang.srt.inferlet.program_limits import ProgramLimits

_DEFAULT = GuestLimits()
MEBIBYTE = 1 << 20


class RunLimits(msgspec.Struct, kw_only=True):
    """Limits of one run. One that is exceeded ends the run, with an error that names it."""

    turn_cpu: Annotated[
        float, Bounds(0, 10, open=True), "Seconds of processor time that a turn may take."
    ] = _DEFAULT.turn_cpu
    total_cpu: Annotated[
        float, Bounds(0, 3600, open=True), "Seconds of processor time of all turns together."
    ] = _DEFAULT.total_cpu
    wall: Annotated[float, Bounds(0, 86400, open=True), "Seconds that the run may take."] = 600.0
    memory: Annotated[
        int, Bounds(MEBIBYTE, 512 * MEBIBYTE), "Bytes of memory; Python alone needs 20 MiB."
    ] = _DEFAULT.memory
    answer_bytes: Annotated[
        int, Bounds(1024, 64 * MEBIBYTE), "Bytes of the answers of one turn."
    ] = _DEFAULT.answer_bytes
    calls_bytes: Annotated[int, Bounds(1024, 16 * MEBIBYTE), "Bytes of the calls of one turn."] = (
        _DEFAULT.calls_bytes
    )
    calls: Annotated[int, Bounds(1, 65536), "Calls of one turn."] = _DEFAULT.calls
    replay_bytes: Annotated[
        int, Bounds(0, 64 * MEBIBYTE),
        "Bytes of answers that are kept, so that the run outlives the sandbox's process.",
    ] = _DEFAULT.log_bytes  # fmt: skip
    backlog: Annotated[
        int, Bounds(1024, 64 * MEBIBYTE), "Bytes of messages, lines and results of the run."
    ] = 4 * MEBIBYTE
    pages: Annotated[
        int, Bounds(0, 1 << 24), "Pages of the KV cache at a time; 0: the engine's share."
    ] = 0

    def of_guest(self) -> GuestLimits:
        """The limits that the sandbox's process enforces."""
        return GuestLimits(
            self.turn_cpu, self.total_cpu, self.memory, self.answer_bytes, self.calls_bytes,
            self.calls, self.replay_bytes,
        )  # fmt: skip

    def of_program(self) -> ProgramLimits:
        """The limits that the session enforces."""
        return ProgramLimits(pages=self.pages, calls=self.calls, log_bytes=self.backlog)
