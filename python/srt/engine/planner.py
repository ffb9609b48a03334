"""Planner: the queue, the running requests, and the next pass made of them.

The scheduler decides from a view; the store obeys; rows are what the worker gets to see. A plan
takes memory and moves watermarks, so it must be run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from srt.config import ScheduleConfig
from srt.core.batch import Batch, Row
from srt.core.ints import ints
from srt.core.request import Request
from srt.engine.drafts import MAX_DRAFTS, Drafter, propose
from srt.engine.info import EngineInfo
from srt.engine.rows import make_rows
from srt.engine.stats import Stats
from srt.memory.store import Match, Store
from srt.schedule.scheduler import Reserve, plan
from srt.schedule.view import Item, View

ROUNDS = 4  # plans a pass: a later round uses what prefix sharing or retraction has freed
WINDOW = 512  # the oldest waiting requests that a cache-aware order looks at


class Planner:
    """Decides and prepares passes.

    Attributes:
        waiting, running: by request id; waiting in order of arrival.
        filled: requests whose every token was in the cache, to be ended.
    """

    def __init__(
        self,
        info: EngineInfo,
        schedule: ScheduleConfig,
        store: Store,
        stats: Stats,
        drafter: Drafter | None,
    ) -> None:
        self.info, self.schedule, self.store, self.stats = info, schedule, store, stats
        self.drafter = drafter
        self.reserve = Reserve()
        self.step_number = 0
        self.waiting: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        self.filled: list[Request] = []
        self._matches: dict[int, Match] = {}  # of waiting requests, at ``_matched_at``
        self._matched_at = -1  # version of the radix tree
        self._arrivals = 0

    def put(self, request: Request) -> None:
        """To the end of the queue."""
        self._arrivals += 1
        request.arrival = self._arrivals
        self.waiting[request.id] = request

    def drop(self, request: Request) -> None:
        """The request has ended."""
        self.waiting.pop(request.id, None)
        self.running.pop(request.id, None)

    def plan(self) -> Batch:
        """Decide and prepare the next pass: memory is taken, watermarks move, rows are made."""
        self.step_number += 1
        budget = self.schedule.chunked_prefill_size
        budget = budget if budget > 0 else 1 << 30
        rows: dict[int, list[Row]] = {}
        retracted = False
        for _ in range(ROUNDS):
            # Who has just given way is not let in again at once.
            slots = 0 if retracted else self.schedule.max_running_requests - len(self.running)
            view = self._view(rows, budget, slots)
            decision = plan(view, self.schedule.schedule_policy, self.schedule.max_overtakes)
            if decision.retract:
                retracted = True
                self.retract([self.running[number] for number in decision.retract])
            before = len(rows)
            used, saved = self._apply(decision.rows, rows)
            budget -= used
            if len(rows) == before or not (decision.retract or saved):
                break
        self.reserve.passed()
        return Batch(self.step_number, list(chain.from_iterable(rows.values())))

    def _view(self, rows: dict[int, list[Row]], budget: int, slots: int) -> View:
        running = [
            Item(r.id, r.arrival, r.context.work, r.growth, self.store.room(r.context),
                 fixed=r.id in rows)
            for r in sorted(self.running.values(), key=lambda r: r.arrival)
        ]  # fmt: skip
        waiting = [
            Item(r.id, r.arrival, len(r.context.tokens), r.growth, 0, r.priority, r.overtaken)
            for r in (self._window() if slots > 0 and budget > 0 else ())
        ]
        return View(
            self.step_number, running, waiting, self.store.available, self.info.page_size,
            budget, slots, self.reserve.share, self._match,
            lambda number: self.store.exclusive(self.running[number].context),
        )  # fmt: skip

    def _window(self) -> Iterable[Request]:
        waiting = self.waiting.values()
        return waiting if self.schedule.schedule_policy == "priority" else islice(waiting, WINDOW)

    def _match(self, number: int) -> Match:
        if self._matched_at != self.store.tree.version:
            self._matched_at = self.store.tree.version
            self._matches.clear()
        if number not in self._matches:
            request = self.waiting[number]
            self._matches[number] = self.store.match(request.context, request.match_limit)
        return self._matches[number]

    def _apply(self, planned: list[tuple[int, int]], rows: dict[int, list[Row]]) -> tuple[int, int]:
        """Rows for the plan. Returns prompt tokens used, and how many the plan did not need since
        another row of this very pass computes them."""
        used = saved = 0
        for number, count in planned:
            request = self.waiting.get(number) or self.running[number]
            context = request.context
            if number in self.waiting:
                self._admit(request)
            elif context.work > 1:
                self.store.acquire(context, request.match_limit)
            expected = count
            count = min(count, max(context.work, 0))
            saved += expected - count
            if count == 0:
                self.filled.append(request)
                continue
            prompt = context.saved < request.prompt
            tip = count == context.work and not prompt
            drafts = self._drafts(request, planned) if tip else []
            count += len(drafts)
            if not self.store.grow(context, count):
                self.stats.plan_misses += 1
                self.store.truncate(context, len(context.tokens) - len(drafts))
                continue
            rows[number] = make_rows(request, count, self.info.eos, drafts)
            self.store.advance(context, count, publish=prompt)
            request.passes += 1
            count -= len(drafts)  # they are no part of the plan
            if count > 1 or prompt:
                used += count
        return used, saved

    def _drafts(self, request: Request, planned: Sequence[tuple[int, int]]) -> list[int]:
        """Guesses, which the context then ends with. None where they might take memory that the
        plan counts on."""
        drafts = propose(self.drafter, request) if self.drafter is not None else []
        if not drafts:
            return []
        owed = sum(
            len(self.waiting[number].context.tokens) if number in self.waiting else count
            for number, count in planned
        )
        if self.store.available < owed + MAX_DRAFTS:  # pages against tokens
            return []
        self.store.append(request.context, ints(drafts))
        return drafts

    def _admit(self, request: Request) -> None:
        del self.waiting[request.id]
        self.running[request.id] = request
        if request.cached < 0:
            request.origin = self.store.origin(request.context, request.match_limit)
        self.store.acquire(request.context, request.match_limit)
        if request.cached < 0:
            request.cached = min(request.context.saved, request.prompt)
            request.queued = time.monotonic() - request.received
            self.stats.cached_tokens += request.cached
            self.stats.prompt_tokens += request.prompt
        for other in self.waiting.values():
            if other.arrival > request.arrival:
                break
            other.overtaken += 1

    def retract(self, requests: Sequence[Request]) -> None:
        """Back to their places in the queue. What was computed stays in the cache while it can."""
        for request in requests:
            self.store.release(request.context)
            self.waiting[request.id] = self.running.pop(request.id)
            self.reserve.retracted()
        self.waiting = dict(sorted(self.waiting.items(), key=lambda item: item[1].arrival))
        self.stats.retractions += len(requests)
        self._matches.clear()  # they may have grown since they were matched
