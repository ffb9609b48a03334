"""Disk: KV in slots of a file, copied from and to host memory by jobs; jobs return results.

A slot holds the KV of ``slot_tokens`` consecutive tokens, a whole number of host pages. The engine
decides the contents of slots (``disk/disk_tier``); the worker has the bytes and the threads that
copy them (``worker/disk_pool``). The engine never waits for a job.
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
        digest: digest of the namespace and of all tokens up to the end of the slot.
        before: digest of the namespace and of all tokens before the slot.
        first: whether the slot is the first of its path; ``before`` is then the namespace's digest.
        tokens: tokens of the slot.
    """

    digest: bytes
    before: bytes
    first: bool
    tokens: Ints


class SlotRecord(msgspec.Struct, frozen=True):
    """A slot that an earlier server has written. A later write has a greater ``serial``."""

    slot: int
    serial: int
    key: SlotKey


class DiskWrite(msgspec.Struct, frozen=True):
    """Copy host pages, which must not change meanwhile, to slots: the same number to each slot."""

    number: int
    slots: Ints
    pages: Ints
    keys: Sequence[SlotKey]


class DiskRead(msgspec.Struct, frozen=True):
    """Copy slots to host pages. Nothing else may use the pages meanwhile. A slot whose stored
    digest differs from its one in ``digests`` is not copied."""

    number: int
    slots: Ints
    pages: Ints
    digests: Sequence[bytes]


class DiskResult(msgspec.Struct, frozen=True):
    """Result of a job.

    Attributes:
        number: number of the job.
        copied: number of slots that were copied, from the first on.
        error: reason why the next slot was not copied; "": all slots were.
        size: number of bytes copied.
        seconds: duration of the job.
        damaged: whether the next slot was read but has wrong data: the disk itself works.
    """

    number: int
    copied: int
    error: str = ""
    size: int = 0
    seconds: float = 0.0
    damaged: bool = False


class Disk(Protocol):
    """Slots of a file. Reads run in the order of their calls; so do writes and ``clear``."""

    @property
    def slots(self) -> int: ...
    @property
    def slot_tokens(self) -> int: ...
    def records(self) -> Sequence[SlotRecord]:
        """Return the slots that the file had at the start."""
        ...

    def write(self, job: DiskWrite) -> None:
        """Queue a job and return at once."""
        ...

    def read(self, job: DiskRead) -> None:
        """Queue a job and return at once."""
        ...

    def clear(self) -> None:
        """Queue, after the queued writes, the removal of all slots. Return at once."""
        ...

    def results(self) -> Sequence[DiskResult]:
        """Return the results of jobs that have ended since the last call."""
        ...

    def close(self) -> None:
        """Stop the threads and close the file. Jobs that have not begun are dropped."""
        ...
