"""Planner: the queue, the running requests, and the next pass made of them.

The scheduler decides from a view; the store obeys; rows are what the worker gets to see. A plan
takes memory and moves watermarks, so it must be run.

A pass may be planned while the one before is under way and nobody knows yet what that draws. A
request that draws in it goes on from a placeholder (``Row.follows``); one that draws its last token
in it gives its memory back: passes run in the order they are planned, so what a pass yet to be
planned writes cannot disturb one that is under way. That a drawn token ends its request may show
only when the next row is under way too; what that row draws is dropped.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter

from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Batch
from sglang.srt.core.clock import Clock
from sglang.srt.core.context import Context
from sglang.srt.core.ints import ints
from sglang.srt.core.request import Request
from sglang.srt.core.work import STEP_LOOKUP, STEP_NUMBERS
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.grammar_budget import GrammarBudget, by_cost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.masks import PassMasks
from sglang.srt.engine.passes import Part, Pass
from sglang.srt.engine.rows import make_rows
from sglang.srt.engine.stats import Stats
from sglang.srt.memory.store import Match, Store
from sglang.srt.schedule.order import AGING
from sglang.srt.schedule.scheduler import Reserve, plan
from sglang.srt.schedule.view import Item, View

ROUNDS = 4  # plans a pass: a later round uses what prefix sharing or retraction has freed
_arrival = attrgetter("arrival")
WINDOW = 512  # waiting requests that a step looks at: the oldest, or those of highest priority


class Planner:
    """Decides and prepares passes.

    Attributes:
        waiting, running: by request id; waiting in order of arrival.
        leaving: by request id; their last pass is under way and they hold no memory.
        filled: requests whose every token was in the cache, to be ended.
        new_budget: makes the budget of a pass's grammars.
        lookup: tokens of waiting requests that a step may look up in the cache.
    """

    def __init__(
        self,
        info: EngineInfo,
        schedule: ScheduleConfig,
        store: Store,
        stats: Stats,
        drafts: Drafts,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self.info, self.schedule, self.store, self.stats = info, schedule, store, stats
        self.drafts = drafts
        self.reserve = Reserve()
        self.new_budget: Callable[[], GrammarBudget] = GrammarBudget
        self.step_number = 0
        self.lookup = STEP_LOOKUP
        self._admitted = 0  # tokens of the requests that this step has admitted
        self._numbers = 0  # log-probabilities of prompts that this step may still report
        self._postponed = 0  # rows postponed until the last plan (``Stats.postponed_rows``)
        self._by_priority = schedule.schedule_policy == "priority"
        self._ranked: list[tuple[int, int, int]] = []  # waiting ones by priority, where it counts
        self.waiting: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        self.leaving: dict[int, Request] = {}
        self.filled: list[Request] = []
        self._matches: dict[int, Match] = {}  # of waiting requests, at ``_matched_at``
        self._matched_at = -1  # version of the radix tree
        self._arrivals = 0
        self._follows: dict[int, int] = {}  # by request id: the row that draws its last token

    def put(self, request: Request) -> None:
        """To the end of the queue."""
        self._arrivals += 1
        request.arrival = self._arrivals
        request.guessed = bool(self.drafts.sources(request))
        self.waiting[request.id] = request
        self._rank(request)

    def drop(self, request: Request) -> None:
        """The request has ended."""
        self.waiting.pop(request.id, None)
        self._unrank(request)
        self.running.pop(request.id, None)
        self.leaving.pop(request.id, None)
        self.drafts.forget(request)

    def plan(self, under_way: Pass | None = None) -> Pass:
        """Decide and prepare the next pass: memory is taken, watermarks move, rows are made. It may
        have no rows.

        ``under_way``: the pass before, where it has not been collected; it must not be one that
        ``waits``.
        """
        self._follows.clear()
        self._admitted, self._numbers = 0, STEP_NUMBERS
        if under_way is not None:
            self._foresee(under_way)
        planned = Pass(Batch(self.step_number + 1, []), PassMasks(self.new_budget()))
        budget = self.schedule.chunked_prefill_size
        budget = budget if budget > 0 else 1 << 30
        retracted = False
        for _ in range(ROUNDS):
            # Who has just given way is not let in again at once.
            slots = 0 if retracted else self.schedule.max_running_requests - len(self.running)
            view = self._view(planned, budget, slots)
            decision = plan(view, self.schedule.schedule_policy, self.schedule.max_overtakes)
            if decision.retract:
                retracted = True
                self.retract([self.running[number] for number in decision.retract])
            before = len(planned.parts)
            used, saved = self._apply(self._ordered(decision.rows, planned), planned)
            budget -= used
            if len(planned.parts) == before or not (decision.retract or saved):
                break
        if planned.parts:
            self.step_number += 1
            self.reserve.passed()
        self._postponed = self.stats.postponed_rows
        return planned

    def _foresee(self, under_way: Pass) -> None:
        """Account for the pass in flight. A request that will sample again gets a placeholder
        token, filled on the device (``Row.follows``). A request on its last token moves to
        ``leaving`` and frees its pages now: passes run in the order they were planned, so a later
        pass may reuse them."""
        for number, (request, _, last, tip) in under_way.parts.items():
            if not tip or self.running.get(number) is not request:  # it was aborted or retracted
                continue
            if request.growth > request.pending:
                request.context.tokens.append(0)
                self._follows[number] = last
            else:
                self.leaving[number] = self.running.pop(number)
                self.store.release(request.context)

    def _view(self, planned: Pass, budget: int, slots: int) -> View:
        size, parts, running = self.info.page_size, planned.parts, []
        for r in sorted(self.running.values(), key=_arrival):
            context = r.context
            saved = context.saved
            running.append(
                Item(r.id, r.arrival, len(context.tokens) - saved, r.most - r.drawn - r.pending,
                     len(context.pages) * size - saved, 0, 0, r.id in parts)
            )  # fmt: skip
        waiting = [
            Item(r.id, r.arrival, len(r.context.tokens), r.growth, 0, r.priority, r.overtaken)
            for r in (self._window() if slots > 0 and budget > 0 else ())
        ]
        return View(
            planned.batch.id, running, waiting, self.store.available, size, budget, slots,
            self.reserve.share, self._match,
            lambda number: self.store.exclusive(self.running[number].context),
        )  # fmt: skip

    def _window(self) -> Iterable[Request]:
        """The first waiting requests, as many as this step can still look up and admit, and one in
        any case: the oldest, or those of highest priority where priorities count."""
        first: Iterable[Request] = self.waiting.values()
        if self._by_priority:
            first = (self.waiting[number] for _, _, number in self._ranked)
        left, window = self.lookup - self._admitted, list[Request]()
        for request in islice(first, WINDOW):
            left -= len(request.context.tokens)
            if left < 0 and (window or self._admitted):
                break
            window.append(request)
            if left < 0:
                break
        return window

    def _rank(self, request: Request) -> None:
        """Note the priority of a request that waits."""
        if self._by_priority:
            insort(self._ranked, _place(request))

    def _unrank(self, request: Request) -> None:
        """Forget the priority of a request that no longer waits, or never did."""
        at = bisect_left(self._ranked, _place(request))
        if self._ranked[at : at + 1] == [_place(request)]:
            del self._ranked[at]

    def _match(self, number: int) -> Match:
        if self._matched_at != self.store.tree.version:
            self._matched_at = self.store.tree.version
            self._matches.clear()
        if number not in self._matches:
            request = self.waiting[number]
            self._matches[number] = self.store.match(request.context, request.match_limit)
        return self._matches[number]

    def _ordered(self, decided: list[tuple[int, int]], planned: Pass) -> list[tuple[int, int]]:
        """The decided rows, those of cheap grammars first where a row was postponed since the last
        plan. Adapters are taken in order of arrival before that: everybody's turn comes."""
        if self.stats.postponed_rows == self._postponed:
            return decided
        for number, _ in decided:
            if number in self.running:
                self._adapts(planned, self.running[number].context)
        return by_cost(decided, self.running)

    def _apply(self, decided: list[tuple[int, int]], planned: Pass) -> tuple[int, int]:
        """Rows for what was decided. Returns prompt tokens used, and how many were not needed since
        another row of this very pass computes them."""
        used = saved = 0
        proposed = self._proposed(decided)
        for number, count in decided:
            request = self.running.get(number)
            if request is None:
                request = self._admit(self.waiting[number])
            elif request.context.work > 1:
                self._found(request, self.store.acquire(request.context, request.match_limit))
            context = request.context
            work = len(context.tokens) - context.saved
            if count > work:
                saved += count - work
                count = work
            if count == 0:
                self.filled.append(request)
                continue
            if not self._adapts(planned, context):
                continue
            prompt = context.saved < request.prompt
            if prompt:
                count = self._reported(request, count)
            drafts: Sequence[int] = ()
            if number in proposed and count == work and not prompt:
                drafts = self._room_for(proposed[number], request, decided)
                count += len(drafts)
            if not self.store.grow(context, count):
                self.stats.plan_misses += 1
                self.store.truncate(context, len(context.tokens) - len(drafts))
                continue
            self._add(request, count, drafts, planned)
            if prompt:
                request.asked(context.saved + count)
            self.store.advance(context, count, publish=prompt)
            count -= len(drafts)  # they are no part of the plan
            if count > 1 or prompt:
                used += count
        return used, saved

    def _reported(self, request: Request, count: int) -> int:
        """Number of the next ``count`` tokens whose log-probabilities fit this step; at least
        one."""
        each = request.top + len(request.probe)
        if not each or request.unscored >= request.prompt:
            return count
        silent = max(request.unscored - 1 - request.context.saved, 0)  # nothing is asked of these
        count = min(count, silent + max(self._numbers // each, 1))
        self._numbers -= max(count - silent, 0) * each
        return count

    def _adapts(self, planned: Pass, context: Context) -> bool:
        """Whether the pass has room for the context's adapter. The oldest requests come first, so
        everybody's turn comes when those before him have ended."""
        adapter = context.namespace.adapter
        if adapter and adapter not in planned.adapters:
            if len(planned.adapters) >= self.info.max_loras_per_batch:
                return False
            planned.adapters.add(adapter)
        return True

    def _add(self, request: Request, count: int, drafts: Sequence[int], planned: Pass) -> None:
        """The request takes part in the pass with its next ``count`` tokens."""
        context, rows = request.context, planned.batch.rows
        follows = self._follows.get(request.id, -1)
        first = len(rows)
        rows += make_rows(request, count, self.info.eos, drafts, follows, self.info.sections,
                          planned.masks)  # fmt: skip
        tip = context.saved + count == len(context.tokens)
        planned.parts[request.id] = Part(request, first, len(rows) - 1, tip)
        if rows[-1].sample is not None:
            request.pending += 1
            planned.waits = planned.waits or self._waits(request)

    def _waits(self, request: Request) -> bool:
        """Whether its next row is a function of the token it is about to draw: a mask is, and so
        are drafts. Then all wait, lest it lose every other pass to those who need not."""
        if request.matcher is not None:  # also at its last token, whose mask may be postponed
            return True
        if not request.guessed or request.growth <= request.pending:
            return False
        return self.drafts.wanted(request, len(self.running))

    def _proposed(self, planned: Sequence[tuple[int, int]]) -> Mapping[int, list[int]]:
        """Guesses for the requests whose work this plan ends with a draw."""
        ready = [
            request
            for number, count in planned
            if (request := self.running.get(number)) is not None
            and request.guessed
            and number not in self._follows
            and request.context.saved >= request.prompt
            and count >= request.context.work
        ]
        return self.drafts.propose(ready, len(self.running)) if ready else {}

    def _room_for(
        self, drafts: list[int], request: Request, planned: Sequence[tuple[int, int]]
    ) -> list[int]:
        """The drafts, which the context then ends with. None where they might take memory that the
        plan counts on."""
        if not drafts:
            return []
        owed = sum(
            len(self.waiting[number].context.tokens) if number in self.waiting else count
            for number, count in planned
        )
        if self.store.available < owed + len(drafts):  # pages against tokens
            return []
        self.store.append(request.context, ints(drafts))
        return drafts

    def _admit(self, request: Request) -> Request:
        del self.waiting[request.id]
        self._unrank(request)
        self.running[request.id] = request
        self._admitted += len(request.context.tokens)
        stats, first = request.stats, request.stats.miss is None
        if first:
            stats.miss = self.store.miss(request.context, request.match_limit)
        self.store.acquire(request.context, request.match_limit)
        if first:
            stats.cached_tokens = min(request.context.saved, request.prompt)
            stats.queue_seconds = self._clock.now() - request.received
            self.stats.cached_tokens += stats.cached_tokens
            self.stats.prompt_tokens += request.prompt
        if self.schedule.schedule_policy in AGING:
            for other in self.waiting.values():
                if other.arrival > request.arrival:
                    break
                other.overtaken += 1
        return request

    def _found(self, request: Request, gained: int) -> None:
        """Others have computed more of the prompt since it was begun."""
        gained -= max(request.context.saved - request.prompt, 0)
        if gained > 0 and not request.stats.retractions:  # else it may have been computed before
            request.stats.cached_tokens += gained
            self.stats.cached_tokens += gained

    def retract(self, requests: Sequence[Request]) -> None:
        """Back to their places in the queue. What was computed stays in the cache while it can. A
        placeholder is filled before its request is planned again."""
        for request in requests:
            self.store.release(request.context)
            self.waiting[request.id] = self.running.pop(request.id)
            self._rank(request)
            self.reserve.retracted()
            request.stats.retractions += 1
        self.waiting = {r.id: r for r in sorted(self.waiting.values(), key=_arrival)}
        self.stats.retractions += len(requests)
        self._matches.clear()  # they may have grown since they were matched


def _place(request: Request) -> tuple[int, int, int]:
    """Sort key of a waiting request: higher priority first, then age."""
    return -request.priority, request.arrival, request.id
