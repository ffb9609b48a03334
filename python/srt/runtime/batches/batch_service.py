"""BatchService: the files and batches of a server, for the routes of the batch API."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.batches.batch_input import InputLimits
from sglang.srt.runtime.batches.batch_records import BatchRecord, BatchRecords, Order, new_batch_id
from sglang.srt.runtime.batches.batch_runner import Answer, BatchRunner
from sglang.srt.runtime.batches.file_store import DiskErrors, FileStore, new_file_id
from sglang.srt.runtime.batches.line_seats import LineSeats

MAX_OPEN = 100  # batches of one owner that have not ended
MAX_KEPT = 10_000  # batches of one owner


class StorageLimits(NamedTuple):
    """Most bytes of one file, and of all files."""

    file_bytes: int
    all_bytes: int


class BatchService:
    """Files and batches below one directory, which only one server may use."""

    def __init__(
        self,
        directory: Path,
        storage: StorageLimits,
        limits: InputLimits,
        seats: LineSeats,
        answer: Answer,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Lock the directory and read its records. Raises OSError, also if another server uses the
        directory, or if its contents are not a server's."""
        self._now = now
        _verify_own(directory)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(directory)
        self.records = BatchRecords(directory)
        self._unsaved: list[BatchRecord] = []  # records of new batches
        unfinished = {id for r in self.records if not r.ended for id in r.answers}
        self.files = FileStore(directory, *storage, unfinished, now)
        self.files.used = self._used
        self._runner = BatchRunner(self.records, self.files, answer, seats, limits, now)

    def start(self) -> None:
        """Continue the batches that have not ended."""
        for record in self.records:
            if not record.ended:
                self._runner.begin(record)

    async def close(self) -> None:
        await self._runner.close()
        os.close(self._lock)

    async def create(self, order: Order) -> BatchRecord:
        """Create and start a batch. Raises RequestError."""
        self.sweep()
        file = self.files.find(order.input_file_id, order.owner)
        if file.purpose != "batch":
            raise RequestError(
                f"{file.id} was uploaded for {file.purpose!r:.60}; upload the input of a batch "
                "with purpose 'batch'.",
                "input_file_id",
            )
        unsaved = [record for record in self._unsaved if record.order.owner == order.owner]
        known = [*self.records.of(order.owner), *unsaved]
        count = sum(not record.ended for record in known)
        if count >= MAX_OPEN or len(known) >= MAX_KEPT:
            raise RequestError(
                f"This key has {count} batches that have not ended, of {len(known)}; at most "
                f"{MAX_OPEN} of {MAX_KEPT}. Wait for one, or cancel it.",
                code="rate_limit_exceeded",
            )
        record = BatchRecord(id=new_batch_id(), order=order, answers=(new_file_id(), new_file_id()))
        record.enter("validating", self._now())
        self._unsaved.append(record)
        try:
            with DiskErrors():
                await self._runner.save(record)
        finally:
            self._unsaved.remove(record)
        self._runner.begin(record)
        return record

    async def cancel(self, record: BatchRecord) -> None:
        """Cancel a batch; its answers so far are kept. Raises RequestError if it has ended."""
        if record.ended or record.status == "finalizing":
            raise RequestError(
                f"{record.id} is {record.status}; only one that has not ended can be cancelled.",
                "batch_id",
                "conflict",
            )
        with DiskErrors():
            await self._runner.cancel(record)

    def counts(self) -> dict[str, float]:
        """Return numbers for metrics."""
        open = sum(not record.ended for record in self.records)
        return {"open": open, "file_bytes": self.files.size, **self._runner.counts()}

    def sweep(self) -> None:
        """Remove expired files and batches."""
        self.files.sweep()
        self.records.sweep(self._now())

    def _used(self) -> set[str]:
        known = (*self.records, *self._unsaved)
        return {record.order.input_file_id for record in known if not record.ended}


def _verify_own(directory: Path) -> None:
    """Raise OSError if the directory has folders of the store's names that no server created."""
    folders = [name for name in ("files", "batches") if (directory / name).exists()]
    if folders and not (directory / "lock").exists():
        raise OSError(
            f"--batch-dir {directory} has a folder {folders[0]!r} that no server made; give an "
            "empty or a new directory"
        )


def _locked(directory: Path) -> int:
    """Lock the directory; return the file handle that holds the lock. Raises OSError."""
    handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise OSError(
            f"--batch-dir {directory} is in use by another server; give each its own directory"
        ) from error
    return handle
