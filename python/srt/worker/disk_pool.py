"""DiskPool: the threads that copy KV between host memory and a file, one for each direction.

Adjacent slots of a job are copied together, through a buffer of ``RUN_BYTES``. A job stops at its
first error; the slots before the error have been copied.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from sglang.srt.config import MemoryConfig
from sglang.srt.core.disk_jobs import DiskRead, DiskResult, DiskWrite, SlotRecord
from sglang.srt.files.slot_file import RUN_BYTES, SlotFile, runs
from sglang.srt.worker.host_pool import HostPool

log = logging.getLogger("sglang.srt.worker")
SLOT_TOKENS = 16  # minimum tokens of a slot, which is a whole number of pages
CLOSE_SECONDS = 2.0
Job = TypeVar("Job", DiskRead, DiskWrite)


class DiskPool:
    """Implements ``core.disk_jobs.Disk`` over a SlotFile."""

    def __init__(self, file: SlotFile, host: HostPool) -> None:
        self.slots, self.slot_tokens = file.slots, file.slot_tokens
        self._file, self._host = file, host
        self._records = file.records()
        self._reads: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[DiskResult] = queue.SimpleQueue()
        self._unclear = threading.Event()  # set: a request to clear the file is waiting
        self._threads = [
            threading.Thread(target=_work, args=(jobs,), name=f"srt-disk-{name}", daemon=True)
            for name, jobs in (("read", self._reads), ("write", self._writes))
        ]
        for thread in self._threads:
            thread.start()

    def records(self) -> Sequence[SlotRecord]:
        """See ``Disk.records``. A second call returns nothing, because the records are not kept."""
        found, self._records = self._records, []
        return found

    def write(self, job: DiskWrite) -> None:
        self._writes.put(partial(self._run, job, self._write_run))

    def read(self, job: DiskRead) -> None:
        self._reads.put(partial(self._run, job, self._read_run))

    def clear(self) -> None:
        self._unclear.set()
        self._writes.put(self._clear)

    def results(self) -> Sequence[DiskResult]:
        found: list[DiskResult] = []
        with suppress(queue.Empty):
            while True:
                found.append(self._results.get_nowait())
        return found

    def close(self) -> None:
        """See ``Disk.close``. The file stays open if a copy takes longer than CLOSE_SECONDS."""
        for jobs in (self._reads, self._writes):
            with suppress(queue.Empty):
                while True:
                    jobs.get_nowait()
            jobs.put(None)
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)
        if not any(thread.is_alive() for thread in self._threads):
            if self._unclear.is_set():
                self._clear()
            self._file.close()

    def _run(self, job: Job, copy: Callable[[Job, int, int], int]) -> None:
        """Copy a job with ``copy(job, first, end)``, which copies the slots of a run and returns
        how many were copied. Put a DiskResult into the queue that ``results`` empties."""
        started, done, error, damaged = time.perf_counter(), 0, "", False
        try:
            for first, end in runs(job.slots, max(RUN_BYTES // self._file.slot_bytes, 1)):
                count = copy(job, first, end)
                done += count
                if count < end - first:
                    error, damaged = f"slot {job.slots[done]} of kv.data is damaged", True
                    break
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        seconds = time.perf_counter() - started
        size = done * self._file.slot_bytes
        self._results.put(DiskResult(job.number, done, error, size, seconds, damaged))

    def _write_run(self, job: DiskWrite, first: int, end: int) -> int:
        each = len(job.pages) // len(job.slots)
        rows = self._host.read_pages(job.pages[first * each : end * each])
        self._file.write(job.slots[first:end], job.keys[first:end], rows.data.cast("B"))
        return end - first

    def _read_run(self, job: DiskRead, first: int, end: int) -> int:
        each = len(job.pages) // len(job.slots)
        pages = job.pages[first * each : end * each]
        rows = np.empty((len(pages), self._host.page_bytes), np.uint8)
        into = rows.data.cast("B")
        count = self._file.read(job.slots[first:end], job.digests[first:end], into)
        if count:
            self._host.write_pages(pages[: count * each], rows[: count * each])
        return count

    def _clear(self) -> None:
        self._unclear.clear()
        try:
            self._file.clear()
        except OSError as error:
            log.error("the KV on disk could not be forgotten: %s", error)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Call the jobs of the queue in order. Return at the first None."""
    while (job := jobs.get()) is not None:
        job()


def disk_pool(
    memory: MemoryConfig, host: HostPool, fingerprint: Callable[[], bytes]
) -> DiskPool | None:
    """Return the disk tier below host memory, None without ``hicache_storage_dir``.

    ``fingerprint``: returns 32 bytes that stand for everything that the KV bytes depend on. Raises
    ValueError if the directory or the size cannot be used.
    """
    if not memory.hicache_storage_dir:
        return None
    pages = -(-SLOT_TOKENS // memory.page_size)
    slot_bytes = pages * host.page_bytes
    slots = int(memory.hicache_storage_size * 1e9) // slot_bytes
    if slots < 1:
        raise ValueError(
            f"--hicache-storage-size {memory.hicache_storage_size:g} leaves no room for a slot of "
            f"{slot_bytes / 1e6:.2g} MB; raise it."
        )
    directory = Path(memory.hicache_storage_dir).expanduser()
    tokens = pages * memory.page_size
    pool = DiskPool(SlotFile(directory, fingerprint(), slots, slot_bytes, tokens), host)
    log.info("KV on disk: %s, %d tokens", directory, slots * tokens)
    return pool
