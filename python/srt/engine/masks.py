"""Masks of a pass: made by its requests' grammars while the device computes the batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sglang.srt.core.matcher import POSTPONED, GrammarError, Postponed
from sglang.srt.core.progress import GRAMMAR, WAITING
from sglang.srt.core.request import Request
from sglang.srt.core.workers import Mask
from sglang.srt.engine.grammar_budget import UNLIMITED, GrammarBudget

log = logging.getLogger("sglang.srt.engine")


class PassMasks:
    """The ``Masks`` of one pass. Its requests share ``budget``.

    The worker's thread makes them, in the order of the rows. The engine touches no matcher of the
    pass before its result is there.
    """

    def __init__(self, budget: GrammarBudget = UNLIMITED) -> None:
        self._budget = budget
        self._wanted: list[DraftMasks] = []
        self._count = 0
        self._made: list[Mask] | None = None

    def add(self, request: Request, drafts: Sequence[int], without: tuple[int, ...] = ()) -> int:
        """Ask for the masks before each of ``drafts`` and after the last. Return the index of the
        first. ``without``: end tokens that the request ignores, where a grammar would allow
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
        self._error = ""  # reason that no further mask can be made

    def make(self) -> list[Mask]:
        """All masks; those behind the budget or behind an error have the reason in place of
        words."""
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
