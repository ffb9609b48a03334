"""Progress of the engine's loop: its turn, its stage and the request it works for.

They are three numbers in memory that another process may map (``engine/process``), so that a loop
that does not come back can still be asked where it is.
"""

from __future__ import annotations

import struct
from mmap import mmap

WAITING, MESSAGES, PLANNING, PASS, RESULTS, STOP_PATTERNS, GRAMMAR, SENDING = range(8)
STAGES = (
    "waiting for messages", "reading messages", "planning", "the forward pass",
    "results of the forward pass", "stop patterns", "the grammar", "sending events",
)  # fmt: skip
_LAYOUT = struct.Struct("=QQQ")  # turn, stage, request
_STAGE = struct.Struct("=QQ")
SIZE = _LAYOUT.size


class Progress:
    """Shared memory with the loop's turn, stage and request.

    Args:
        memory: ``SIZE`` bytes; by default of this process alone.
    """

    __slots__ = ("_memory", "_turn")

    def __init__(self, memory: mmap | None = None) -> None:
        self._memory: mmap | bytearray = bytearray(SIZE) if memory is None else memory
        self._turn = 0

    def turn(self) -> None:
        """The loop begins once more."""
        self._turn += 1
        _LAYOUT.pack_into(self._memory, 0, self._turn, WAITING, 0)

    def at(self, stage: int, request: int = 0) -> None:
        """The loop begins a stage, for a request or (0) for all."""
        _STAGE.pack_into(self._memory, 8, stage, request)

    def read(self) -> tuple[int, int, int]:
        """Turn, stage, request. Another process may be writing them: they may not fit together."""
        return _LAYOUT.unpack_from(self._memory)


NOWHERE = Progress()  # of requests and engines that nobody watches
