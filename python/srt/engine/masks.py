"""Masks of a pass: made by its requests' grammars while the device computes the batch.

A *budget* limits the processor time of all grammars in one pass. One mask has limits of its own
(``grammar/guidance/work_limits``), but a pass may have many masks. Once the grammars have taken
``SECONDS``, the remaining requests are postponed: the next pass computes their last token again and
samples then. The sample is the same, since it depends only on the context, the mask and the
token's own random number. So the budget decides when a request is served, never its text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sglang.srt.core.matcher import POSTPONED, GrammarError, Postponed
from sglang.srt.core.progress import GRAMMAR, WAITING
from sglang.srt.core.request import Request
from sglang.srt.core.workers import Mask

log = logging.getLogger("sglang.srt.engine")

SECONDS = 0.012  # budget for the masks of a pass; as much again for advancing its grammars


class GrammarBudget:
    """Processor time that the grammars of one pass may take. Used by one thread at a time.

    A pass has one budget for its masks, and one for advancing its grammars.

    Args:
        limit: the budget, in the unit of ``clock``.
        clock: returns the thread's processor time in seconds; tests count masks instead.
    """

    def __init__(
        self, limit: float = SECONDS, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._limit, self._clock = limit, clock
        self._spent = 0.0
        self._since = -1.0  # start of the block being charged; -1: none

    @property
    def open(self) -> bool:
        """Whether time is left. True before the first charge, so one request is always served."""
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
    """Sort planned rows (request id, tokens), the cheapest grammar first, so that a costly grammar
    delays only equally costly ones. A postponed request moves forward with each pass."""
    return sorted(rows, key=lambda row: _rank(running.get(row[0])))


def _rank(request: Request | None) -> float:
    if request is None:  # requests to be admitted come last, as planned
        return float("inf")
    if request.generation.matcher is None:
        return 0.0
    return request.scheduling.cost / (1 + request.scheduling.postponed)


class PassMasks:
    """The ``Masks`` of one pass, whose requests share ``budget``.

    The worker's thread calls ``make``; masks are in the order of ``add``. The engine uses no
    matcher of the pass before the pass is collected.
    """

    def __init__(self, budget: GrammarBudget = UNLIMITED) -> None:
        self._budget = budget
        self._wanted: list[DraftMasks] = []
        self._count = 0
        self._made: list[Mask] | None = None

    def add(self, request: Request, drafts: Sequence[int], without: tuple[int, ...] = ()) -> int:
        """Request a mask before each of ``drafts`` and one after the last. Return the index of the
        first mask. ``without``: end tokens to exclude from the masks, since the request ignores
        them."""
        first = self._count
        self._wanted.append(DraftMasks(request, drafts, without, self._budget))
        self._count += len(drafts) + 1
        return first

    def make(self) -> list[Mask]:
        if self._made is None:
            self._made = [mask for wanted in self._wanted for mask in wanted.make()]
        return self._made


class DraftMasks:
    """Masks of one request: before each of some drafts and after the last."""

    def __init__(
        self,
        request: Request,
        drafts: Sequence[int],
        without: tuple[int, ...],
        budget: GrammarBudget,
    ) -> None:
        assert request.generation.matcher is not None
        self._matcher, self._drafts, self._without = request.generation.matcher, drafts, without
        self._request, self._budget = request, budget
        self._made: list[bytes] = []
        self._error = ""  # reason that no further mask was made; "": none

    def make(self) -> list[Mask]:
        """Return all masks. Masks that were not made, because of the budget or an error, have the
        reason in ``error``."""
        if self._budget.open:
            self._request.progress.worker_at(GRAMMAR, self._request.id)
            self._request.scheduling.cost = 0.0
            with self._budget.charge(self._request):
                self._make()
            self._request.progress.worker_at(WAITING)
        else:
            self._error = POSTPONED
        made = [Mask(words) for words in self._made]
        missing = Mask(error=self._error or "a draft has left the grammar")
        return made + [missing] * (len(self._drafts) + 1 - len(made))

    def _make(self) -> None:
        advanced = 0
        try:
            self._made.append(self._mask())
            for token in self._drafts:
                if not self._budget.open:
                    raise Postponed
                if not self._matcher.advance(token):
                    break
                advanced += 1
                self._made.append(self._mask())
        except Exception as error:
            self._fail(error)
        try:
            self._matcher.rollback(advanced)
        except Exception as error:  # the position is unknown: no mask fits it
            self._made.clear()
            self._fail(error)

    def _mask(self) -> bytes:
        mask = self._matcher.mask()
        if not self._without or not self._matcher.accepting:
            return mask
        changed = bytearray(mask)
        for token in self._without:
            changed[token >> 3] &= ~(1 << (token & 7))
        return bytes(changed)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, GrammarError):
            self._error = str(error)
            return
        log.error("a grammar failed", exc_info=error)
        self._error = f"the grammar failed: {type(error).__name__}: {error}"
