"""GrammarBudget: processor time that the grammars of one pass may take, all requests together.

The work for one mask has limits of its own (``grammar/guidance/work_limits``). Many copies of a
request multiply it. So once a pass's grammars have taken SECONDS, the requests whose turn has not
come wait for the next pass: their last token is computed again. The sample is the same, since it
depends on the context, the mask and a random number that belongs to the token. The budget decides
when a request is served, never its text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sglang.srt.core.request import Request

SECONDS = 0.012  # for the masks of a pass, and as much again for advancing its grammars


class GrammarBudget:
    """Processor time that the grammars of one pass may take. Used by one thread at a time.

    There is one for the masks of a pass, and one for advancing its grammars.

    Args:
        limit: in the unit of ``clock``.
        clock: processor time of the thread; tests count masks instead.
    """

    def __init__(
        self, limit: float = SECONDS, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._limit, self._clock = limit, clock
        self._spent = 0.0
        self._since = -1.0  # where something is being charged

    @property
    def open(self) -> bool:
        """Whether time is left. It is before the first charge, so one request is always served."""
        running = self._clock() - self._since if self._since >= 0 else 0.0
        return self._spent + running < self._limit

    @contextmanager
    def charge(self, request: Request) -> Iterator[None]:
        """Charge the block's processor time to ``request``."""
        self._since = self._clock()
        try:
            yield
        finally:
            cost = self._clock() - self._since
            self._since = -1.0
            self._spent += cost
            request.scheduling.cost += cost


UNLIMITED = GrammarBudget(float("inf"))


def by_cost(rows: list[tuple[int, int]], running: dict[int, Request]) -> list[tuple[int, int]]:
    """Return planned rows (request id, tokens) with the cheapest grammars first, so that a costly
    one delays only others as costly. A request that has waited moves forward (``postponed``)."""
    return sorted(rows, key=lambda row: _rank(running.get(row[0])))


def _rank(request: Request | None) -> float:
    if request is None:  # requests to be admitted come last, as planned
        return float("inf")
    if request.generation.matcher is None:
        return 0.0
    return request.scheduling.cost / (1 + request.scheduling.postponed)
