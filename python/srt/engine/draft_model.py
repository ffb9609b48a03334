"""Draft model: a smaller model on an executor of its own, whose samples are the drafts.

The draft model samples with the request's parameters, grammar and random numbers: where the two
models' distributions are alike, so are the samples, at any temperature.

The draft model has a store of its own for its KV. Each request has a *copy* there: a request on a
context of that store. Before it drafts, the context is cut to the tokens that the main model
sampled. A copy's prompt may be in the store's radix tree already. If pages are short, the contexts
used longest ago are released and computed again when needed. The engine never waits for memory
of the draft model: a request without room gets no drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from sglang.srt.core.batch import Batch, Row, RowOutput
from sglang.srt.core.ints import common_prefix
from sglang.srt.core.messages import Generate
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.request import Generation, Request, RequestSpec
from sglang.srt.core.workers import Worker
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.masks import GrammarBudget, PassMasks
from sglang.srt.engine.rows import make_rows
from sglang.srt.memory.store import Store

log = logging.getLogger("sglang.srt.engine")


class ModelDrafter:
    """The ``Drafter`` "draft".

    Args:
        worker, info: worker and facts of the draft model; it has the main model's vocabulary.
        budget: most prompt tokens that a pass of the draft model computes; -1: unlimited.
        share: whether KV is kept between requests.
    """

    def __init__(
        self, worker: Worker, info: EngineInfo, budget: int = -1, share: bool = True
    ) -> None:
        self._worker, self._info = worker, info
        self._budget = budget if budget > 0 else 1 << 30
        self.store = Store(info.capacity // info.page_size, info.page_size, share)
        self.passes = 0
        self._steps = count(1)
        self._copies: dict[int, Request] = {}  # by request id; the least recently used first
        self._failed = False

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        limits: dict[int, int] = {}  # drafts by request id
        if not self._failed:
            for request, limit in wanted:
                length = len(request.context.tokens)
                limit = min(limit, self._info.context_length - length)
                if limit > 0 and length + limit <= self.store.pool.size * self.store.page_size:
                    self._update(request)
                    limits[request.id] = limit
        try:
            self._sample(limits, found, GrammarBudget())
        except Exception:
            log.exception("the draft model failed; requests go on without it")
            self._failed = True
            self._drop()
        return [found.get(request.id, []) for request, _ in wanted]

    def forget(self, request: Request) -> None:
        copy = self._copies.pop(request.id, None)
        if copy is not None:
            self.store.close(copy.context)

    # -- copies ----------------------------------------------------------------------------------

    def _update(self, request: Request) -> None:
        """Make the request's copy, or set its tokens to those of the request."""
        tokens = request.context.tokens
        copy = self._copies.pop(request.id, None)
        if copy is None:
            copy = self._copy(request)
        else:
            kept = copy.spec.prompt  # later tokens may be drafts that were rejected
            kept += common_prefix(copy.context.tokens, tokens, kept, kept)
            self.store.truncate(copy.context, kept)
            self.store.append(copy.context, tokens[kept:])
        self._copies[request.id] = copy
        matcher, generation = request.generation.matcher, copy.generation
        generation.tokens = request.generation.tokens[:]
        try:
            generation.matcher = matcher.fork() if matcher is not None else None
        except Exception:
            generation.matcher = None  # the next mask raises the error again

    def _copy(self, request: Request) -> Request:
        goal, context = request.spec.goal, request.context
        assert isinstance(goal, Generate)
        space = Namespace(context.namespace.salt)  # the draft model has no adapters
        own = self.store.open(request.id, context.tokens[:], space, context.segments)
        goal = Generate(replace(goal.sampling, constraint=None))
        spec = RequestSpec(goal, request.spec.prompt)
        return Request(request.id, own, spec, Generation(request.generation.seed))

    # -- passes ----------------------------------------------------------------------------------

    def _sample(
        self, limits: dict[int, int], found: dict[int, list[int]], grammars: GrammarBudget
    ) -> None:
        """Sample drafts into ``found``, one a pass for each request in ``limits``, up to its limit.
        A request whose mask exceeds the budget ``grammars`` gets no further draft."""
        while limits:
            rows: list[Row] = []
            sampling: list[tuple[Request, int]] = []  # copies, and the row that samples for each
            budget, present = self._budget, list(limits)
            masks = PassMasks(grammars)
            for number in present:
                copy = self._copies[number]
                new = self._rows(copy, budget, present, masks)
                if not new:
                    del limits[number]
                    continue
                rows += new
                budget -= sum(len(row.tokens) for row in new) - 1
                if new[-1].sample is None:  # the budget did not cover the rest of its prompt
                    del limits[number]
                else:
                    sampling.append((copy, len(rows) - 1))
            if not rows:
                return
            self.passes += 1
            batch = Batch(next(self._steps), rows, self.store.dropped())
            result = self._worker.launch(batch, masks)()
            for copy, row in sampling:
                drafts = found.setdefault(copy.id, [])
                if not self._take(copy, result.rows[row], drafts, limits[copy.id]):
                    del limits[copy.id]

    def _rows(self, copy: Request, budget: int, present: list[int], masks: PassMasks) -> list[Row]:
        """Return the rows of the copy's work, at most ``budget`` tokens; [] if pages are short."""
        context = copy.context
        if not context.active or context.work > 1:
            self.store.acquire(context, copy.match_limit)
        size = min(context.work, max(budget, 0))
        if size == 0 or not self._grow(copy, size, present):
            return []
        rows = make_rows(copy, size, self._info.eos, masks=masks)
        self.store.advance(context, size, publish=context.saved < copy.spec.prompt)
        return rows

    def _grow(self, copy: Request, size: int, present: list[int]) -> bool:
        """Take pages for ``size`` tokens, if need be from copies without a row. False: too few."""
        while not self.store.grow(copy.context, size):
            idle = (c for c in self._copies.values() if c.context.active and c.id not in present)
            victim = next(idle, None)
            if victim is None:
                return False
            self.store.release(victim.context)
        return True

    def _take(self, copy: Request, out: RowOutput, drafts: list[int], limit: int) -> bool:
        """Add the sample to the drafts. Return whether to sample another draft."""
        goal, matcher = copy.spec.goal, copy.generation.matcher
        assert isinstance(goal, Generate)
        token = out.token
        if out.error or token in goal.sampling.stop_token_ids:
            return False
        if token in self._info.eos and not goal.sampling.ignore_eos:
            return False
        try:
            if matcher is not None and not matcher.advance(token):
                return False
        except Exception:
            return False
        drafts.append(token)
        copy.context.tokens.append(token)
        copy.generation.tokens.append(token)
        return len(drafts) < limit

    def _drop(self) -> None:
        """Drop all copies and their KV after a failed pass, whose KV was not written."""
        for copy in self._copies.values():
            if copy.context.active:
                self.store.release(copy.context, keep=False)
            self.store.close(copy.context)
        self._copies.clear()
        self.store.flush("failed")
