"""DiskTier: KV below host memory, in slots of a file that outlives the server.

The tier is a radix tree like those of the device and host memory, over a pool of slots; a slot is
its page. Every path that is complete in host memory is written, the oldest first, one job at a
time; if paths come faster than the disk writes, the oldest are dropped. KV that a request lacks is
read to host memory and loaded from there. A slot counts as written when its job has ended.

Threads copy while passes run. So the slots and host pages of a job are locked, or in no tree, until
the job has ended. A read begins after the passes that used its host pages before were collected.

The file outlives the engine, so it has no numbers that only this engine knows. A namespace is
identified by a digest of its salt. KV of adapters is not kept, nor KV from the first token of an
image or video on: adapters and media have other numbers after a restart.

A failed read loses the slot at which it failed; a failed write loses the rest of its path. Such KV
is computed again. After ``MOST_FAULTS`` failed writes in a row nothing is written any more; after
as many failed reads the tier is off.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.disk_jobs import (
    DIGEST_BYTES,
    Disk,
    DiskRead,
    DiskResult,
    DiskWrite,
    SlotKey,
    SlotRecord,
)
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.memory.host_tier import HostTier
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import Choose, RadixTree
from sglang.srt.memory.radix_node import RadixNode

log = logging.getLogger("sglang.srt.engine")
WRITE_SLOTS = 64  # most slots of a write
READ_SLOTS = 256  # most slots of a read
MOST_READS = 2  # most reads in flight
MOST_FAULTS = 4  # failures in a row after which the tier stops writing, or reading
UNWRITTEN = 1 << 20  # most tokens of paths that wait to be written


@dataclass(slots=True)
class DiskCounts:
    """Counters since the start."""

    written_bytes: int = 0
    read_bytes: int = 0
    faults: int = 0
    dropped_tokens: int = 0


@dataclass(slots=True)
class DiskFlight:
    """A disk job, read or write, that has not ended.

    Attributes:
        tokens: tokens of the path, from its root to the end of the job.
        start: index in ``tokens`` where the job's first slot begins.
        slot_lock, page_lock: locked nodes of the disk's tree and of host memory's.
        after: id of the forward pass that must be collected before the job may begin.
        begun: whether the worker has received the job.
        void: whether the cache was cleared since the job was made; its result is then ignored.
    """

    job: DiskWrite | DiskRead
    tokens: Ints
    start: int
    slot_lock: RadixNode
    page_lock: RadixNode
    after: int = 0
    begun: bool = False
    void: bool = False


@dataclass(slots=True)
class Unwritten:
    """Paths in host memory that wait to be written, oldest first."""

    paths: deque[tuple[Ints, Namespace]] = field(default_factory=deque)
    tokens: int = 0

    def add(self, tokens: Ints, namespace: Namespace) -> int:
        """Add a path. Return the number of tokens of the paths dropped to limit the queue."""
        if self.paths:  # a longer path replaces the one that it extends
            last, space = self.paths[-1]
            if space == namespace and tokens[: len(last)] == last:
                self.paths.pop()
                self.tokens -= len(last)
        self.paths.append((tokens, namespace))
        self.tokens += len(tokens)
        dropped = 0
        while self.tokens > UNWRITTEN and len(self.paths) > 1:
            dropped += self.pop()
        return dropped

    def begins_with(self, tokens: Ints) -> bool:
        """Return whether the oldest path begins with ``tokens``."""
        return bool(self.paths) and self.paths[0][0][: len(tokens)] == tokens

    def pop(self) -> int:
        """Drop the oldest path. Return its number of tokens."""
        tokens, _ = self.paths.popleft()
        self.tokens -= len(tokens)
        return len(tokens)


class DiskTier:
    """Copies of KV pages on disk.

    Args:
        disk: the worker's storage, which has the bytes.
        host: the tier above.

    Attributes:
        tree: map from prefixes to slots.
        traffic: counters of reads, writes and faults.
        off: error after which the tier was switched off; "": the tier is on.
        choose: selects the leaf to evict if some leaves have claims; None if no leaf has.
    """

    def __init__(self, disk: Disk, host: HostTier, clock: Clock = SYSTEM_CLOCK) -> None:
        self.disk, self.host = disk, host
        self.tree = RadixTree(PagePool(disk.slots), disk.slot_tokens, clock)
        self.traffic = DiskCounts()
        self.off = ""
        self.choose: Choose | None = None
        self._digests = rebuild(self.tree, disk.records())  # by slot
        self._unwritten = Unwritten()
        self._flights: dict[int, DiskFlight] = {}
        self._numbers = 0
        self._faults = {DiskWrite: 0, DiskRead: 0}  # in a row

    @property
    def pending(self) -> int:
        """Number of jobs that have not ended, jobs not begun included."""
        return len(self._flights)

    @property
    def reading(self) -> int:
        """Number of reads that have not ended."""
        return sum(isinstance(flight.job, DiskRead) for flight in self._flights.values())

    @property
    def writes(self) -> bool:
        """Whether the tier still writes: it is on, and not too many writes have failed in a row."""
        return not self.off and self._faults[DiskWrite] < MOST_FAULTS

    @property
    def forgetting(self) -> bool:
        """Whether jobs in flight lock KV that was cleared, so that it is still in this tree and in
        the tree of host memory."""
        return any(flight.void for flight in self._flights.values())

    # -- out -------------------------------------------------------------------------------------

    def note(self, tokens: Ints, namespace: Namespace) -> None:
        """Note that host memory has the KV of all of this path, and queue the path for writing."""
        tokens = kept(tokens, namespace, self.tree.page_size)
        if tokens and self.writes:
            self.traffic.dropped_tokens += self._unwritten.add(tokens, namespace)

    def _write(self) -> None:
        """Begin the next write, unless a write is in flight or a job locks cleared slots: the new
        path would be put below these slots."""
        writes = any(isinstance(flight.job, DiskWrite) for flight in self._flights.values())
        if writes or self.forgetting:
            return
        while self._unwritten.paths and not self._write_path(*self._unwritten.paths[0]):
            self._unwritten.pop()

    def _write_path(self, tokens: Ints, namespace: Namespace) -> bool:
        """Begin to write slots of a path that the disk lacks, at most ``WRITE_SLOTS``. Return False
        if there is nothing to write, or no slot is free."""
        size, space = self.tree.page_size, space_of(namespace)
        each = size // self.host.page_size
        pages = self.host.copies(tokens, len(tokens), namespace)
        whole = len(pages) // each
        held = self.tree.match(tokens, len(tokens), space)[0] // size
        count = min(whole - held, WRITE_SLOTS)
        if count <= 0:
            self.traffic.dropped_tokens += len(tokens) - max(whole, held) * size
            return False
        lock, before = self.tree.lock(tokens, held * size, space)
        self.tree.evict(count - self.tree.pool.free, choose=self.choose)
        count = min(count, self.tree.pool.free)
        if count == 0:  # the jobs in flight hold all slots
            self.tree.unlock(lock)
            self.traffic.dropped_tokens += len(tokens) - held * size
            return False
        slots = ints(sorted(self.tree.pool.take(count)))
        path = tokens[: (held + count) * size]
        digest = self._digests[before[-1]] if before else bytes.fromhex(space.salt)
        keys = keys_of(path, held * size, size, digest)
        self._digests.update(zip(slots, (key.digest for key in keys)))
        page_lock, _ = self.host.tree.lock(path, len(path), namespace)
        job = DiskWrite(self._next(), slots, pages[held * each : (held + count) * each], keys)
        self._flights[job.number] = DiskFlight(job, path, held * size, lock, page_lock, begun=True)
        self.disk.write(job)
        return True

    # -- in --------------------------------------------------------------------------------------

    def match(self, tokens: Ints, limit: int, namespace: Namespace) -> int:
        """Return how many of ``tokens[:limit]`` have KV on disk, changing nothing."""
        if self.forgetting:
            return 0
        tokens = kept(tokens[:limit], namespace, self.tree.page_size)
        return self.tree.match(tokens, len(tokens), space_of(namespace))[0] if tokens else 0

    def known(self, tokens: Ints, namespace: Namespace) -> tuple[Ints, Namespace]:
        """Return the part of a path that the disk may keep, and the disk's namespace for it."""
        return kept(tokens, namespace, self.tree.page_size), space_of(namespace)

    def lacking(self, tokens: Ints, limit: int, namespace: Namespace) -> int:
        """Return how many tokens of the match on disk are not in host memory."""
        found = self.match(tokens, limit, namespace)
        return found - self._whole(tokens, found, namespace) if found else 0

    def read(self, tokens: Ints, limit: int, namespace: Namespace) -> int:
        """Make a job that reads slots of ``tokens[:limit]``, after the part in host memory, to it.

        Return the number of the job; 0 if none can be made now: too many reads are in flight, one
        of them reads the same slots, or all host pages are locked.
        """
        size, each = self.tree.page_size, self.tree.page_size // self.host.page_size
        found = self.match(tokens, limit, namespace)
        start = self._whole(tokens, found, namespace)
        reads = [f.job for f in self._flights.values() if isinstance(f.job, DiskRead)]
        if found <= start or len(reads) >= MOST_READS:
            return 0
        end = min(found, start + READ_SLOTS * size)
        lock, slots = self.tree.lock(tokens, end, space_of(namespace))
        slots = slots[start // size :]
        page_lock, _ = self.host.tree.lock(tokens, start, namespace)
        pool = self.host.tree.pool
        if any(slots[0] in job.slots for job in reads):
            slots = ints()
        wanted = min(len(slots) * each, pool.size // 2)
        self.host.evict(wanted - pool.free)
        slots = slots[: min(pool.free, pool.size // 2) // each]
        if not slots:
            self.tree.unlock(lock)
            self.host.tree.unlock(page_lock)
            return 0
        pages = pool.take(len(slots) * each)
        self.host.lent.update(pages)
        job = DiskRead(self._next(), slots, pages, [self._digests[slot] for slot in slots])
        path = tokens[: start + len(slots) * size]
        self._flights[job.number] = DiskFlight(
            job, path, start, lock, page_lock, self.host.last_pass
        )
        return job.number

    def _whole(self, tokens: Ints, limit: int, namespace: Namespace) -> int:
        """Return how many of ``tokens[:limit]`` host memory has, rounded down to whole slots."""
        have = len(self.host.copies(tokens, limit, namespace)) * self.host.page_size
        return have - have % self.tree.page_size

    # -- jobs ------------------------------------------------------------------------------------

    def turn(self) -> list[DiskResult]:
        """Handle the jobs that have ended, and begin others. Return the results of reads."""
        ended = []
        for result in self.disk.results():
            ended += self._end(self._flights.pop(result.number), result)
        for number, flight in list(self._flights.items()):
            if flight.begun or not isinstance(flight.job, DiskRead):
                continue
            if flight.void:
                ended += self._end(self._flights.pop(number), DiskResult(number, 0))
            elif self.host.passed(flight.after):
                flight.begun = True
                self.disk.read(flight.job)
        if self.writes:
            self._write()
        return ended

    def _end(self, flight: DiskFlight, result: DiskResult) -> list[DiskResult]:
        """Handle the end of a job. Return [result] for a read, [] for a write."""
        job = flight.job
        if isinstance(job, DiskWrite):
            self._written(flight, job, result)
        else:
            self._was_read(flight, job, result)
        if not flight.void:  # a void job's KV was cleared meanwhile
            self._count(job, result)
        return [result] if isinstance(job, DiskRead) else []

    def _written(self, flight: DiskFlight, job: DiskWrite, result: DiskResult) -> None:
        """Publish the slots that were written in the tree, and free the others."""
        self.traffic.written_bytes += result.size
        good = 0 if flight.void else result.copied
        node, _, spare = self.tree.publish(
            flight.slot_lock, flight.tokens, flight.start, job.slots[:good]
        )
        self.tree.pool.give(spare + job.slots[good:])
        self._unlock(flight, node, flight.page_lock)
        if result.error and self._unwritten.begins_with(flight.tokens):
            self.traffic.dropped_tokens += self._unwritten.pop() - flight.start

    def _was_read(self, flight: DiskFlight, job: DiskRead, result: DiskResult) -> None:
        """Publish the host pages that were filled in host memory's tree, and free the others. Drop
        a slot that could not be read, unless another job locks it: that job will fail, too."""
        self.traffic.read_bytes += result.size
        each = len(job.pages) // len(job.slots)
        good = 0 if flight.void else result.copied * each
        tree = self.host.tree
        node, _, spare = tree.publish(
            flight.page_lock, flight.tokens, flight.start, job.pages[:good]
        )
        tree.pool.give(spare + job.pages[good:])
        self.host.lent.difference_update(job.pages)
        self._unlock(flight, flight.slot_lock, node)
        if result.error and not flight.void:
            forget(self.tree, flight.slot_lock, job.slots[result.copied :][:1])

    def _unlock(self, flight: DiskFlight, slots: RadixNode, pages: RadixNode) -> None:
        """Release the locks of a job. If it is void, drop the cleared KV that they have kept."""
        self.tree.unlock(slots)
        self.host.tree.unlock(pages)
        if flight.void:
            forget(self.tree, slots)
            forget(self.host.tree, pages)

    def _count(self, job: DiskWrite | DiskRead, result: DiskResult) -> None:
        """Count failures in a row; stop writing, or switch the tier off, after ``MOST_FAULTS``."""
        kind = type(job)
        if not result.error:
            self._faults[kind] = 0
            return
        self.traffic.faults += 1
        if result.damaged:
            log.warning("%s; it will be computed again", result.error)
            return
        self._faults[kind] += 1
        if self._faults[kind] == 1:
            verb = "written" if kind is DiskWrite else "read"
            log.warning("KV could not be %s: %s; it will be computed again", verb, result.error)
        if self._faults[kind] < MOST_FAULTS or self.off:
            return
        self._unwritten = Unwritten()
        if kind is DiskWrite:
            log.error("%d writes of KV in a row failed: no more is written", MOST_FAULTS)
            return
        self.off = result.error
        log.error("%d reads of KV in a row failed: the disk is not used any more", MOST_FAULTS)
        self._forget_all()

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- the cache -------------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop everything, also KV that jobs in flight copy."""
        self._forget_all()
        self.disk.clear()

    def _forget_all(self) -> None:
        self._unwritten = Unwritten()
        for flight in self._flights.values():
            flight.void = True
        self.tree.clear()

    @property
    def counts(self) -> dict[str, int]:
        """Counters and gauges by name."""
        tree, traffic = self.tree, self.traffic
        return {
            "disk_tokens": (tree.evictable + tree.protected) * tree.page_size,
            "disk_total_tokens": tree.pool.size * tree.page_size,
            "disk_written_bytes": traffic.written_bytes,
            "disk_read_bytes": traffic.read_bytes,
            "disk_faults": traffic.faults,
            "disk_dropped_tokens": traffic.dropped_tokens,
        }

    def check(self) -> None:
        """Raise AssertionError if a slot is lost or a lock was not released."""
        jobs = [flight.job for flight in self._flights.values()]
        writing = {slot for job in jobs if isinstance(job, DiskWrite) for slot in job.slots}
        reading = {page for job in jobs if isinstance(job, DiskRead) for page in job.pages}
        owned = self.tree.check()
        self.tree.pool.check([*owned, *writing])
        assert reading == self.host.lent, "a host page is lent to no job"
        if not jobs:
            assert not self.tree.protected, "slots are locked and no job needs them"
            assert not self.host.tree.protected, "host pages are locked and no job needs them"
        assert self._digests.keys() >= set(owned), "a slot without a digest"


def kept(tokens: Ints, namespace: Namespace, size: int) -> Ints:
    """Return the part of a path that the disk may keep: whole slots of ``size`` tokens."""
    if namespace.adapter or not tokens:
        return ints()
    length = len(tokens)
    if min(tokens) < 0:  # the mark of an image or video
        length = next(i for i, token in enumerate(tokens) if token < 0)
    return tokens[: length - length % size]


def space_of(namespace: Namespace) -> Namespace:
    """Return the disk's namespace for one of the engine: the digest of its salt."""
    return Namespace(blake2b(namespace.salt.encode(), digest_size=DIGEST_BYTES).hexdigest())


def digest_of(before: bytes, tokens: Ints) -> bytes:
    """Return the digest of a path, from the digest before its last slot and the slot's tokens."""
    return blake2b(tokens.tobytes(), digest_size=DIGEST_BYTES, key=before).digest()


def keys_of(tokens: Ints, start: int, size: int, before: bytes) -> list[SlotKey]:
    """Return the keys of the slots of ``tokens[start:]``. ``before``: digest up to ``start``."""
    keys = []
    for at in range(start, len(tokens), size):
        part = tokens[at : at + size]
        digest = digest_of(before, part)
        keys.append(SlotKey(digest, before, at == 0, part))
        before = digest
    return keys


def forget(tree: RadixTree, node: RadixNode, pages: Ints | None = None) -> None:
    """Drop the unlocked edges on the path to ``node`` and all nodes below them. ``pages``: drop
    only from these pages on."""
    found, step = set[int](), node
    while step.parent is not None:
        if not step.locks:
            found.update(step.pages)
        step = step.parent
    tree.prune(found if pages is None else found.intersection(pages))


def rebuild(tree: RadixTree, records: Sequence[SlotRecord]) -> dict[int, bytes]:
    """Fill an empty tree with the slots that an earlier server has written. Return the digests by
    slot. A slot is used only if all slots of its path before it exist. Of two slots with the same
    key the one written later is used.
    """
    newest = {r.key.digest: r for r in sorted(records, key=lambda record: record.serial)}
    below: dict[bytes, list[SlotRecord]] = {}
    stack: list[tuple[SlotRecord, Ints, Ints, bytes]] = []
    for record in newest.values():
        key = record.key
        if key.digest != digest_of(key.before, key.tokens):
            continue
        if key.first:
            stack.append((record, ints(), ints(), key.before))
        else:
            below.setdefault(key.before, []).append(record)
    digests: dict[int, bytes] = {}
    stack.reverse()  # the oldest is published, and may be evicted, first
    while stack:
        record, tokens, slots, space = stack.pop()
        while True:
            tokens += record.key.tokens
            slots.append(record.slot)
            digests[record.slot] = record.key.digest
            after = below.get(record.key.digest, [])
            if len(after) != 1:
                break
            record = after[0]
        stack += [(child, tokens[:], slots[:], space) for child in reversed(after)]
        if not after:
            node, held = tree.lock(tokens, len(tokens), Namespace(space.hex()))
            start = len(held) * tree.page_size
            node, _, _ = tree.publish(node, tokens, start, slots[len(held) :])
            tree.unlock(node)
    tree.pool.claim(digests)
    return digests
