"""Progress of the engine's loop: its turn, its stage and the request it works for.

These numbers are in memory that another process may map (``engine/process``), so that the stage of
a hanging loop can be read. A worker in a thread of its own notes a second stage, which is reported
while the loop waits for the forward pass.
"""

from __future__ import annotations

import struct
from mmap import mmap

WAITING, MESSAGES, PLANNING, PASS, RESULTS, STOP_PATTERNS, GRAMMAR, SENDING = range(8)
STAGES = (
    "waiting for messages", "reading messages", "planning", "the forward pass",
    "results of the forward pass", "stop patterns", "the grammar", "sending events",
)  # fmt: skip
_LOOP = struct.Struct("=QQQ")  # turn, stage, request
_STAGE = struct.Struct("=QQ")  # stage, request
_ALL = struct.Struct("=QQQQQ")  # of the loop, then stage and request of the worker
SIZE = _ALL.size


class Progress:
    """Shared memory with the loop's turn, stage and request.

    Args:
        memory: ``SIZE`` bytes of shared memory; None: private memory.
    """

    __slots__ = ("_memory", "_turn")

    def __init__(self, memory: mmap | None = None) -> None:
        self._memory: mmap | bytearray = bytearray(SIZE) if memory is None else memory
        self._turn = 0

    def turn(self) -> None:
        """Note that the loop begins its next turn."""
        self._turn += 1
        _LOOP.pack_into(self._memory, 0, self._turn, WAITING, 0)

    def at(self, stage: int, request: int = 0) -> None:
        """Note that the loop begins a stage, for one request, or for all requests (0)."""
        _STAGE.pack_into(self._memory, 8, stage, request)

    def worker_at(self, stage: int, request: int = 0) -> None:
        """Note that the worker begins a stage of a forward pass, or ends it (``WAITING``)."""
        _STAGE.pack_into(self._memory, _LOOP.size, stage, request)

    def read(self) -> tuple[int, int, int]:
        """Return turn, stage and request; during a forward pass the worker's stage and request, if
        it has noted any. Another process may be writing the numbers, so they may not match."""
        turn, stage, request, worker_stage, worker_request = _ALL.unpack_from(self._memory)
        if stage == PASS and worker_stage != WAITING:
            return turn, worker_stage, worker_request
        return turn, stage, request


NOWHERE = Progress()  # default of requests and engines that no process watches
