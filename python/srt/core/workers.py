"""Worker: what the engine asks of one device rank. ``worker.model_worker`` has the real one.

A pass has two messages. The batch comes first, so that the device can start. The masks of its
grammars come second, because they are made on the CPU while the device computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.disk_jobs import Disk

Finish: TypeAlias = Callable[[], StepResult]


class Mask(msgspec.Struct, frozen=True):
    """Token ids that a grammar allows: little-endian int32 words, low bit first, 1 = allowed.

    ``error``: why there is no mask, "" where there is one; for example ``core.matcher.POSTPONED``.
    """

    words: bytes = b""
    error: str = ""


class Masks(Protocol):
    """The masks of one pass, which its samples name by index (``Sample.mask``)."""

    def make(self) -> Sequence[Mask]:
        """Make all masks of the pass. A worker calls this once, after the device has started. A
        second call returns the same masks."""
        ...


class NoMasks:
    """The masks of a pass that needs none."""

    def make(self) -> Sequence[Mask]:
        return ()


NO_MASKS = NoMasks()


class Worker(Protocol):
    """Computes batches in the order they are given and changes none of them."""

    @property
    def disk(self) -> Disk | None:
        """Storage below its host memory; None where there is none."""
        ...

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        """Start a batch. The returned function waits for the outputs of every row and returns them.

        The next batch may be launched before that. Raises where the pass as a whole failed, here or
        in the returned function; then no row of it counts.
        """
        ...

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        """Read an adapter and return facts about it. Rows of batches launched from now on may have
        it. Another thread may call this beside a pass. Raises ValueError, MemoryError."""
        ...

    def unload_adapter(self, number: int) -> None:
        """Forget an adapter that no row of a batch has any more. Another thread may call this
        beside a pass. No effect where the adapter is not loaded."""
        ...
