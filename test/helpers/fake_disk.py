"""A disk without threads: its file is a dictionary, and jobs end when the engine looks.

It holds the engine to its promises: what is written does not change meanwhile, and no pass
touches what is read into.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from helpers.tables import Corrupt
from sglang.srt.core.disk_jobs import DiskRead, DiskResult, DiskWrite, SlotKey, SlotRecord

Page = list[tuple[int, int]]  # one page in the fake worker's host memory
File = dict[int, tuple[SlotRecord, list[Page]]]  # by slot


class FakeDisk:
    """Implements ``core.disk_jobs.Disk``.

    Args:
        host: the fake worker's host memory.
        file: what an earlier one has left.
        delay: how many looks a job takes from its beginning to its end.

    Attributes:
        fail_writes, fail_reads: numbers of the slots, counted from 1, whose copy fails.
        damaged: numbers of the read slots that are wrong.
        wrote, was_read: slots copied, failed ones included.
    """

    def __init__(
        self,
        slots: int,
        slot_tokens: int,
        host: dict[int, Page],
        file: File | None = None,
        delay: Callable[[], int] = lambda: 1,
    ) -> None:
        self.slots, self.slot_tokens = slots, slot_tokens
        self.host, self.file, self.delay = host, {} if file is None else file, delay
        self.fail_writes: Collection[int] = ()
        self.fail_reads: Collection[int] = ()
        self.damaged: Collection[int] = ()
        self.wrote = self.was_read = 0
        self.closed = False
        self._serial = max((record.serial for record, _ in self.file.values()), default=0)
        self._jobs: list[tuple[int, DiskWrite | DiskRead | None, list[Page]]] = []

    def records(self) -> Sequence[SlotRecord]:
        return [record for record, _ in self.file.values() if record.slot < self.slots]

    def write(self, job: DiskWrite) -> None:
        assert len(job.slots) == len(job.keys)
        self._jobs.append((self.delay(), job, [list(self.host[page]) for page in job.pages]))

    def read(self, job: DiskRead) -> None:
        for page in job.pages:
            self.host.pop(page, None)  # a pass that loads it now is found out
        self._jobs.append((self.delay(), job, []))

    def clear(self) -> None:
        if any(not isinstance(job, DiskRead) for _, job, _ in self._jobs):
            self._jobs.append((0, None, []))
        else:
            self.file.clear()

    def results(self) -> Sequence[DiskResult]:
        found, left, writing = [], [], False
        for looks, job, before in self._jobs:
            late = looks > 0 or (writing and not isinstance(job, DiskRead))
            if late:
                left.append((looks - 1, job, before))
                writing = writing or not isinstance(job, DiskRead)
            elif job is None:
                self.file.clear()
            elif isinstance(job, DiskWrite):
                found.append(self._write(job, before))
            else:
                found.append(self._read(job))
        self._jobs = left
        return found

    def close(self) -> None:
        self.closed = True

    def _write(self, job: DiskWrite, before: list[Page]) -> DiskResult:
        each = len(job.pages) // len(job.slots)
        now = [self.host.get(page) for page in job.pages]
        if now != before:
            raise Corrupt("a host page was changed while it was written to disk")
        for index, (slot, key) in enumerate(zip(job.slots, job.keys)):
            self.wrote += 1
            self.file.pop(slot, None)
            if self.wrote in self.fail_writes:
                return DiskResult(job.number, index, "no space left on device")
            self._serial += 1
            pages = before[index * each : (index + 1) * each]
            self.file[slot] = SlotRecord(slot, self._serial, key), pages
        return DiskResult(job.number, len(job.slots), "", 100 * len(job.slots), 0.001)

    def _read(self, job: DiskRead) -> DiskResult:
        each = len(job.pages) // len(job.slots)
        for index, (slot, digest) in enumerate(zip(job.slots, job.digests)):
            self.was_read += 1
            held = self.file.get(slot)
            if self.was_read in self.fail_reads:
                return DiskResult(job.number, index, "input/output error")
            if self.was_read in self.damaged or held is None or held[0].key.digest != digest:
                return DiskResult(job.number, index, "a wrong checksum", damaged=True)
            for page, content in zip(job.pages[index * each : (index + 1) * each], held[1]):
                if page in self.host:
                    raise Corrupt("a host page was written while it was read into")
                self.host[page] = content
        return DiskResult(job.number, len(job.slots), "", 100 * len(job.slots), 0.001)


def keys(file: File) -> list[SlotKey]:
    """Keys of all slots of a file."""
    return [record.key for record, _ in file.values()]
