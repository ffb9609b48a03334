"""Worker: the engine's interface to one device rank, implemented by ``worker.model_worker``.

A pass has two inputs. The batch comes first, so that the device can start. The masks of its
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

    ``error``: reason why there is no mask, for example ``core.matcher.POSTPONED``; else "".
    """

    words: bytes = b""
    error: str = ""


class Masks(Protocol):
    """The masks of one pass; ``Sample.mask`` is an index into them."""

    def make(self) -> Sequence[Mask]:
        """Make all masks of the pass. A worker calls this once, after the device has started. A
        second call returns the same masks."""
        ...


class NoMasks:
    """Empty ``Masks`` of a pass without constraints."""

    def make(self) -> Sequence[Mask]:
        return ()


NO_MASKS = NoMasks()


class Worker(Protocol):
    """Computes batches in the order of ``launch``, and does not change the batches."""

    @property
    def disk(self) -> Disk | None:
        """Disk storage for KV below host memory, or None."""
        ...

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        """Start a batch. Return a function that waits for the outputs of all rows and returns them.

        The next batch may be launched before that call. If the whole pass fails, ``launch`` or the
        returned function raises; then no row of the pass is valid.
        """
        ...

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        """Load an adapter and return facts about it. Rows of later batches may use its number.
        Another thread may call this during a pass. Raises ValueError, MemoryError."""
        ...

    def unload_adapter(self, number: int) -> None:
        """Unload an adapter that no row of a batch uses any more. Another thread may call this
        during a pass. No effect if the adapter is not loaded."""
        ...
