"""WaitingQueue: the requests that wait to be admitted, in order of arrival or priority."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

from sglang.srt.core.request import Request, arrival_key

WINDOW = 512  # most waiting requests that a step considers: the oldest or of highest priority
_arrival = attrgetter("scheduling.arrival")


class WaitingQueue:
    """Waiting requests, in order of arrival or by priority.

    Args:
        by_priority: order by priority, then by arrival.

    Attributes:
        requests: waiting requests by id.
    """

    def __init__(self, by_priority: bool) -> None:
        self.requests: dict[int, Request] = {}
        self._by_priority = by_priority
        self._ranked: list[tuple[int, int, int]] = []  # sorted; empty unless ``by_priority``
        self._arrivals = 0
        self._latest = 0  # the greatest arrival so far
        self._unsorted = False  # True: ``requests`` may be out of order

    def put(self, request: Request) -> None:
        """Add a request and give it its sort key, by ``RequestSpec.arrived``."""
        arrival = request.scheduling.arrival = self.stamp(request.spec.arrived)
        self._unsorted = self._unsorted or arrival < self._latest
        self._latest = max(self._latest, arrival)
        self._add(request)

    def stamp(self, moment: float) -> int:
        """Return a new, unique sort key of age for something that waits since ``moment``."""
        self._arrivals += 1
        return arrival_key(moment, self._arrivals)

    def put_back(self, request: Request) -> None:
        """Add a request that was removed before, under its old sort key."""
        self._unsorted = True
        self._add(request)

    def remove(self, request: Request) -> None:
        """Remove a request, if it is in the queue."""
        self.requests.pop(request.id, None)
        index = bisect_left(self._ranked, _rank_of(request))
        if self._ranked[index : index + 1] == [_rank_of(request)]:
            del self._ranked[index]

    def overtake(self, admitted: Request) -> None:
        """Count one overtake for each waiting request older than ``admitted``."""
        for request in self.requests.values():
            if request.scheduling.arrival > admitted.scheduling.arrival:
                break
            request.scheduling.overtaken += 1

    def first(self, tokens: int, begun: bool) -> list[Request]:
        """Return the first requests: the oldest, or those of the highest priority. At most
        ``WINDOW``, and ``tokens`` tokens together; but at least one unless ``begun``."""
        if self._unsorted:
            self.requests = {r.id: r for r in sorted(self.requests.values(), key=_arrival)}
            self._unsorted = False
        order: Iterable[Request] = self.requests.values()
        if self._by_priority:
            order = (self.requests[number] for _, _, number in self._ranked)
        window: list[Request] = []
        for request in islice(order, WINDOW):
            tokens -= len(request.context.tokens)
            if tokens < 0 and (window or begun):
                break
            window.append(request)
        return window

    def _add(self, request: Request) -> None:
        self.requests[request.id] = request
        if self._by_priority:
            insort(self._ranked, _rank_of(request))


def _rank_of(request: Request) -> tuple[int, int, int]:
    """Sort key of a waiting request: higher priority first, then age."""
    return -request.spec.priority, request.scheduling.arrival, request.id
