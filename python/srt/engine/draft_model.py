"""Draft model: a smaller model on an executor of its own, whose draws are the guess.

It draws as the request does, with the same parameters, grammar and random numbers: where the two
distributions are alike so are the draws, sampled ones too.

What it has computed lies in a store like the engine's: each request has a context there, which is
cut to what the request has really drawn and goes on from there; its prompt is met in the radix tree
where another had it. Where memory is short, contexts that have waited longest are released, and
computed again when their turn comes. Nothing of it is ever waited for: who has no room gets no
drafts.
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
from sglang.srt.core.request import Request
from sglang.srt.core.workers import Worker
from sglang.srt.engine.grammar_budget import GrammarBudget
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.masks import PassMasks
from sglang.srt.engine.rows import make_rows
from sglang.srt.memory.store import Store

log = logging.getLogger("sglang.srt.engine")


class ModelDrafter:
    """A ``Drafter``.

    Args:
        worker, info: the draft model's; its vocabulary is the model's own.
        budget: tokens of prompts a pass; -1: unlimited.
        share: False keeps no KV between requests.
    """

    def __init__(
        self, worker: Worker, info: EngineInfo, budget: int = -1, share: bool = True
    ) -> None:
        self._worker, self._info = worker, info
        self._budget = budget if budget > 0 else 1 << 30
        self.store = Store(info.capacity // info.page_size, info.page_size, share)
        self.passes = 0
        self._steps = count(1)
        self._shadows: dict[int, Request] = {}  # by request; used longest ago first
        self._failed = False

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        asked: dict[int, int] = {}
        if not self._failed:
            for request, limit in wanted:
                length = len(request.context.tokens)
                limit = min(limit, self._info.context_length - length)
                if limit > 0 and length + limit <= self.store.pool.size * self.store.page_size:
                    self._follow(request)
                    asked[request.id] = limit
        try:
            self._draw(asked, found, GrammarBudget())
        except Exception:
            log.exception("the draft model failed; requests go on without it")
            self._failed = True
            self._drop()
        return [found.get(request.id, []) for request, _ in wanted]

    def forget(self, request: Request) -> None:
        shadow = self._shadows.pop(request.id, None)
        if shadow is not None:
            self.store.close(shadow.context)

    # -- shadows ---------------------------------------------------------------------------------

    def _follow(self, request: Request) -> None:
        """Give the request a shadow: the same request on a context of the draft model's, as far as
        it has come."""
        tokens = request.context.tokens
        shadow = self._shadows.pop(request.id, None)
        if shadow is None:
            shadow = self._shadow(request)
        else:
            kept = shadow.prompt  # what follows was drawn or guessed, and a guess may be wrong
            kept += common_prefix(shadow.context.tokens, tokens, kept, kept)
            self.store.truncate(shadow.context, kept)
            self.store.append(shadow.context, tokens[kept:])
        self._shadows[request.id] = shadow
        shadow.drawn = request.drawn
        try:
            shadow.matcher = request.matcher.fork() if request.matcher is not None else None
        except Exception:
            shadow.matcher = None  # the mask that is asked for next says why

    def _shadow(self, request: Request) -> Request:
        assert isinstance(request.goal, Generate)
        context = request.context
        space = Namespace(context.namespace.salt)  # it has no adapters
        own = self.store.open(request.id, context.tokens[:], space, context.segments)
        goal = Generate(replace(request.goal.sampling, constraint=None))
        shadow = Request(request.id, own, goal, request.seed)
        shadow.prompt = request.prompt
        return shadow

    # -- passes ----------------------------------------------------------------------------------

    def _draw(
        self, asked: dict[int, int], found: dict[int, list[int]], grammars: GrammarBudget
    ) -> None:
        """Draft token after draft token, for all requests that still want one, into ``found``. A
        request whose mask ``grammars`` does not allow gets no further draft."""
        while asked:
            rows: list[Row] = []
            drawing: list[tuple[Request, int]] = []
            budget, present = self._budget, list(asked)
            masks = PassMasks(grammars)
            for number in present:
                shadow = self._shadows[number]
                new = self._rows(shadow, budget, present, masks)
                if not new:
                    del asked[number]
                    continue
                rows += new
                budget -= sum(len(row.tokens) for row in new) - 1
                if new[-1].sample is None:  # more of its prompt is to be computed first
                    del asked[number]
                else:
                    drawing.append((shadow, len(rows) - 1))
            if not rows:
                return
            self.passes += 1
            result = self._worker.launch(Batch(next(self._steps), rows), masks)()
            for shadow, at in drawing:
                drafts = found.setdefault(shadow.id, [])
                if not self._take(shadow, result.rows[at], drafts, asked[shadow.id]):
                    del asked[shadow.id]

    def _rows(
        self, shadow: Request, budget: int, present: list[int], masks: PassMasks
    ) -> list[Row]:
        """Rows of the shadow's work, as far as the budget goes; none where memory does not."""
        context = shadow.context
        if not context.active or context.work > 1:
            self.store.acquire(context, shadow.match_limit)
        size = min(context.work, max(budget, 0))
        if size == 0 or not self._grow(shadow, size, present):
            return []
        rows = make_rows(shadow, size, self._info.eos, masks=masks)
        self.store.advance(context, size, publish=context.saved < shadow.prompt)
        return rows

    def _grow(self, shadow: Request, size: int, present: list[int]) -> bool:
        """Pages for ``size`` tokens, where need be of those who have no part in the pass."""
        while not self.store.grow(shadow.context, size):
            idle = (s for s in self._shadows.values() if s.context.active and s.id not in present)
            victim = next(idle, None)
            if victim is None:
                return False
            self.store.release(victim.context)
        return True

    def _take(self, shadow: Request, out: RowOutput, drafts: list[int], limit: int) -> bool:
        """Add the draw to the drafts. Whether another one is wanted."""
        assert isinstance(shadow.goal, Generate)
        token = out.token
        if out.error or token in shadow.goal.sampling.stop_token_ids:
            return False
        if token in self._info.eos and not shadow.goal.sampling.ignore_eos:
            return False
        try:
            if shadow.matcher is not None and not shadow.matcher.advance(token):
                return False
        except Exception:
            return False
        drafts.append(token)
        shadow.context.tokens.append(token)
        shadow.drawn += 1
        return len(drafts) < limit

    def _drop(self) -> None:
        """The pass raised: what it should have written is not there."""
        for shadow in self._shadows.values():
            if shadow.context.active:
                self.store.release(shadow.context, keep=False)
            self.store.close(shadow.context)
        self._shadows.clear()
        self.store.flush("failed")
