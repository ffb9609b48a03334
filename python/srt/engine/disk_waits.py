"""DiskWaits: requests that wait, before they are queued, for the read of a prefix from disk.

If the disk has a longer prefix of a prompt than the device and host memory, the request waits
outside the queue until that prefix is in host memory, where admission finds it. Other requests do
not wait. A request is queued at once if computing the prefix is predicted to be faster. It waits
at most ``PATIENCE`` times the predicted time of computing (at least ``LEAST_WAIT``); then it is
queued, and the tokens not read by then are computed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sglang.srt.core.clock import Clock
from sglang.srt.core.disk_jobs import Disk
from sglang.srt.core.request import Request
from sglang.srt.disk.disk_tier import DiskTier
from sglang.srt.disk.spill import Spill
from sglang.srt.engine.planner import Planner

PATIENCE = 2.0
LEAST_WAIT = 1.0  # seconds


@dataclass(slots=True)
class DiskWait:
    """A request that waits for the disk.

    Attributes:
        since, deadline: times on the engine's clock.
        have: prompt tokens that the device and host memory had when the wait began.
        job: number of the read in flight; 0: none.
    """

    request: Request
    since: float
    deadline: float
    have: int
    job: int = 0


@dataclass(slots=True)
class WaitCounts:
    """Counts since the start: requests that waited for the disk, the sum of their seconds, and
    requests whose read failed or was late (``disk_late``)."""

    disk_waits: int = 0
    disk_wait_seconds: float = 0.0
    disk_late: int = 0


class DiskWaits:
    """Requests that wait for the disk, and the disk's tier. Without a disk no request waits.

    Args:
        disk: the worker's storage; None: no disk.
        planner: its queue, store and costs are used.
    """

    def __init__(self, disk: Disk | None, planner: Planner, clock: Clock) -> None:
        self.store, self.costs = planner.store, planner.costs
        self.chunk = planner.schedule.chunked_prefill_size
        self.tier: DiskTier | None = None
        self.counted = WaitCounts()
        self._planner, self._clock = planner, clock
        self._waiting: dict[int, DiskWait] = {}  # by request id
        host = self.store.host
        if disk is not None and host is not None:
            self.tier = host.below = DiskTier(disk, host, clock)
            planner.spill = Spill(self.store.tree, host)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: int) -> bool:
        return request in self._waiting

    @property
    def pending(self) -> int:
        """Number of waiting requests and of jobs in flight, which ``turn`` must check."""
        return len(self._waiting) + (self.tier.pending if self.tier is not None else 0)

    @property
    def work(self) -> bool:
        """Whether a pass should be planned, for requests or to copy KV that only the device has."""
        planner, spill = self._planner, self._planner.spill
        return bool(planner.waiting or planner.running or (spill is not None and spill.owed))

    @property
    def counts(self) -> dict[str, float]:
        """Counters and gauges by name; empty without a disk."""
        return {} if self.tier is None else {**self.tier.counts, **asdict(self.counted)}

    def put(self, request: Request) -> None:
        """Queue a request, or let it wait first if the disk is faster than computing."""
        if not self._waits(request):
            self._planner.put(request)

    def _waits(self, request: Request) -> bool:
        """Start to wait for a prefix if the disk is faster than computing. Return whether so."""
        if self.tier is None or self.tier.off:
            return False
        context, limit = request.context, request.match_limit
        key, space = context.key, context.namespace
        found = self.tier.match(key, limit, space)
        match = self.store.match(context, limit) if found else None
        have = 0 if match is None else match.tokens + match.host
        if found - have < self.tier.tree.page_size:
            return False
        before = sum(len(w.request.context.tokens) - w.have for w in self._waiting.values())
        reads = self.tier.lacking(key, limit, space)
        if not self.costs.read_sooner(before + reads, found - have, self.chunk):
            return False
        now = self._clock.now()
        seconds = PATIENCE * self.costs.computing(found - have, self.chunk) / 1e3
        wait = DiskWait(request, now, now + max(seconds, LEAST_WAIT), have)
        if not self._more(wait):
            return False
        self._waiting[request.id] = wait
        return True

    def drop(self, request: int) -> None:
        """Stop waiting for a request, if it waits. A read in flight for it goes on."""
        self._waiting.pop(request, None)

    def turn(self, computing: bool) -> None:
        """Handle the disk jobs that have ended, and begin others. Queue the requests whose wait is
        over. While the engine is idle, find KV that only the device has (``Spill.look``)."""
        planner = self._planner
        if self.tier is None or planner.spill is None:
            return
        for request in self._ready(self.tier):
            planner.put(request)
        if self.tier.writes and not (computing or planner.running or planner.waiting):
            planner.spill.look()

    def _ready(self, tier: DiskTier) -> list[Request]:
        """Handle the disk jobs that have ended. Remove and return requests whose wait is over."""
        results = {result.number: result for result in tier.turn()}
        for result in results.values():
            self.costs.was_read(result.copied * tier.tree.page_size, result.seconds)
        now, found = self._clock.now(), list[Request]()
        for wait in list(self._waiting.values()):
            ended = results.get(wait.job) if wait.job else None
            wait.job = 0 if ended is not None else wait.job
            failed = ended is not None and bool(ended.error)
            late = now >= wait.deadline
            if failed or late:
                self.counted.disk_late += 1
            if failed or late or not (wait.job or self._more(wait)):
                found.append(self._end(wait, now))
        return found

    def _more(self, wait: DiskWait) -> bool:
        """Begin to read the tokens that a request still lacks. Return whether to wait: this read
        has begun, or may begin once other reads have ended."""
        assert self.tier is not None
        context, limit = wait.request.context, wait.request.match_limit
        if not self.tier.lacking(context.key, limit, context.namespace):
            return False
        wait.job = self.tier.read(context.key, limit, context.namespace)
        return bool(wait.job or self.tier.reading)

    def _end(self, wait: DiskWait, now: float) -> Request:
        """Remove a request, count its wait and note the tokens that were read for it."""
        request = wait.request
        del self._waiting[request.id]
        match = self.store.match(request.context, request.match_limit)
        request.scheduling.from_disk = (wait.have, match.tokens + match.host)
        self.counted.disk_waits += 1
        self.counted.disk_wait_seconds += now - wait.since
        return request

    def close(self) -> None:
        """Stop the disk's threads."""
        if self.tier is not None:
            self.tier.disk.close()
