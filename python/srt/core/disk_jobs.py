"""Disk: KV that host memory has copies of, in slots of a file. Jobs go to it, results come back.

A slot holds the KV of ``slot_tokens`` tokens that follow each other, a whole number of host pages.
The engine decides what is in a slot (``disk/disk_tier``); the worker has the bytes and the
threads that copy them (``worker/disk_pool``). The engine never waits for a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from sglang.srt.core.ints import Ints

DIGEST_BYTES = 16


class SlotKey(msgspec.Struct, frozen=True):
    """Key of the KV in a slot.

    Attributes:
        digest: of the namespace and of all tokens up to the end of the slot.
        before: digest up to its beginning.
        first: whether the slot is the first of its path, so that ``before`` is the namespace's.
        tokens: those of the slot.
    """

    digest: bytes
    before: bytes
    first: bool
    tokens: Ints


class SlotRecord(msgspec.Struct, frozen=True):
    """A slot that an earlier server has written. ``serial`` grows with each write."""

    slot: int
    serial: int
    key: SlotKey


class DiskWrite(msgspec.Struct, frozen=True):
    """Copy host pages, which nothing changes meanwhile, to slots, the same number to each."""

    number: int
    slots: Ints
    pages: Ints
    keys: Sequence[SlotKey]


class DiskRead(msgspec.Struct, frozen=True):
    """Copy slots to host pages that nothing else uses meanwhile. A slot whose digest is not the one
    of ``digests`` is not copied."""

    number: int
    slots: Ints
    pages: Ints
    digests: Sequence[bytes]


class DiskResult(msgspec.Struct, frozen=True):
    """End of a job.

    Attributes:
        number: of the job.
        copied: slots that were copied, from the first on.
        error: why the next one was not, "" where all were.
        size: bytes copied.
        seconds: duration.
        damaged: whether the next one was read and is wrong: the disk itself works.
    """

    number: int
    copied: int
    error: str = ""
    size: int = 0
    seconds: float = 0.0
    damaged: bool = False


class Disk(Protocol):
    """Slots of a file. Reads are done in their order, and so are writes and ``clear``."""

    @property
    def slots(self) -> int: ...
    @property
    def slot_tokens(self) -> int: ...
    def records(self) -> Sequence[SlotRecord]:
        """Return what the file held at the start."""
        ...

    def write(self, job: DiskWrite) -> None:
        """Queue a job and return at once."""
        ...

    def read(self, job: DiskRead) -> None:
        """Queue a job and return at once."""
        ...

    def clear(self) -> None:
        """Forget all slots, behind the writes that are queued, and return at once."""
        ...

    def results(self) -> Sequence[DiskResult]:
        """Return the jobs that have ended since the last call."""
        ...

    def close(self) -> None:
        """Stop the threads and give the file free. Jobs that have not begun are dropped."""
        ...
