"""Engine: verbs in, passes out, events back. Plan, run, collect.

    idle       an open context without a request
    waiting    its request is queued, no memory held
    running    its request was admitted: pages held, rows planned
    (done)     one terminal event, Done or Failed; the context is idle again or closed

The engine owns the requests; the store owns the contexts and the memory; the scheduler decides from
a view; the executor computes. Nothing here knows torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from srt.config import ScheduleConfig
from srt.core.batch import Batch, Row, RowOutput
from srt.core.context import Context
from srt.core.ints import from_bytes
from srt.core.messages import (
    Advance,
    Append,
    Close,
    Control,
    Done,
    Event,
    Failed,
    Fork,
    Generate,
    Open,
    Reply,
    Truncate,
    Verb,
)
from srt.core.request import Request
from srt.engine.admission import seed_of, verify
from srt.engine.collect import Collector
from srt.engine.executor import Executor
from srt.engine.info import EngineInfo
from srt.engine.rows import make_rows
from srt.engine.stats import Stats
from srt.grammar.watch import Watch
from srt.memory.store import Match, Store
from srt.schedule.scheduler import Reserve, plan
from srt.schedule.view import Item, View

ROUNDS = 4  # plans a pass: a later round uses what prefix sharing or retraction has freed
WINDOW = 512  # the oldest waiting requests that a cache-aware order looks at


class Engine:
    """One scheduler, one store, one executor.

    Args:
        token_bytes: the bytes of every token id; what stop strings are matched on.
        seed: of requests that bring none.
    """

    def __init__(
        self,
        executor: Executor,
        info: EngineInfo,
        schedule: ScheduleConfig,
        token_bytes: Sequence[bytes],
        *,
        share: bool = True,
        seed: int = 0,
    ) -> None:
        self.executor = executor
        self.info = info
        self.schedule = schedule
        self.store = Store(info.capacity // info.page_size, info.page_size, share)
        self.stats = Stats()
        self.reserve = Reserve()
        self.step_number = 0
        self.waiting: dict[int, Request] = {}  # by request id, in order of arrival
        self.running: dict[int, Request] = {}
        self._requests: dict[int, Request] = {}  # by context id
        self._filled: list[Request] = []  # fills whose every token was in the cache
        self._matches: dict[int, Match] = {}  # of waiting requests, at ``_matched_at``
        self._matched_at = -1  # version of the radix tree
        self._arrivals = 0
        self._seed = seed
        self._collector = Collector(info.eos, token_bytes, self.stats)

    # -- verbs -----------------------------------------------------------------------------------

    def handle(self, verbs: Sequence[Verb]) -> list[Event]:
        """Obey in order. A verb that cannot be obeyed fails its request, or is counted."""
        events: list[Event] = []
        for verb in verbs:
            try:
                self._obey(verb, events)
            except Exception as error:
                if isinstance(verb, Advance):
                    self.stats.rejected += 1
                    events.append(self._refusal(verb.request, error))
                elif isinstance(error, (ValueError, KeyError, OverflowError)):
                    self.stats.bad_verbs += 1
                else:
                    raise
        return events

    @staticmethod
    def _refusal(request: int, error: Exception) -> Failed:
        if isinstance(error, (ValueError, OverflowError)):
            return Failed(request, "invalid", str(error))
        if isinstance(error, KeyError):
            return Failed(request, "invalid", f"no context {error}")
        return Failed(request, "internal", f"{type(error).__name__}: {error}")

    def _obey(self, verb: Verb, events: list[Event]) -> None:
        if isinstance(verb, Open):
            tokens = from_bytes(verb.tokens)
            self.store.open(verb.context, tokens, verb.namespace, verb.segments)
        elif isinstance(verb, Advance):
            self._accept(verb, events)
        elif isinstance(verb, Close):
            context = self.store.contexts.get(verb.context)
            if context is None:
                return  # its request has closed it; the event that says so was still on its way
            request = self._requests.get(verb.context)
            if request is not None:
                events.append(self._end(request, "abort"))
            if verb.context in self.store.contexts:
                self.store.close(context)
        elif isinstance(verb, Fork):
            parent = self.store.contexts[verb.context]
            length = verb.length if verb.length >= 0 else len(parent.tokens)
            self.store.fork(parent, verb.child, length)
        elif isinstance(verb, Append):
            self.store.append(self._idle(verb.context), from_bytes(verb.tokens))
        elif isinstance(verb, Truncate):
            if verb.length < 0:
                raise ValueError(f"a context cannot be cut to {verb.length} tokens")
            self.store.truncate(self._idle(verb.context), verb.length)
        elif isinstance(verb, Control):
            events.append(self._control(verb))

    def _idle(self, number: int) -> Context:
        context = self.store.contexts[number]
        if number in self._requests:
            raise ValueError(f"context {number} has a request under way; close it or wait")
        return context

    def _accept(self, verb: Advance, events: list[Event]) -> None:
        context = self.store.contexts[verb.context]
        if verb.request in self.waiting or verb.request in self.running:
            self.stats.bad_verbs += 1  # an event would end the request that has this number
            return
        if len(self.waiting) >= self.schedule.max_queued_requests:
            message = f"{len(self.waiting)} requests are waiting already; try again later"
            events.append(Failed(verb.request, "busy", message))
            self.stats.rejected += 1
            self._close_refused(verb)
            return
        try:
            request = self._request(verb, self._idle(verb.context))
        except Exception:
            self._close_refused(verb)
            raise
        self._arrivals += 1
        self.stats.received += 1
        self._requests[context.id] = self.waiting[request.id] = request

    def _request(self, verb: Advance, context: Context) -> Request:
        verify(verb.goal, context, self.info)
        request = Request(
            verb.request,
            context,
            verb.goal,
            self._arrivals,
            seed_of(verb.goal, self._seed, self._arrivals),
            priority=verb.priority,
            close=verb.close,
            received=time.monotonic(),
        )
        if isinstance(verb.goal, Generate):
            sampling = verb.goal.sampling
            if sampling.stop or sampling.stop_regex:
                request.watch = Watch(sampling.stop, sampling.stop_regex)
        return request

    def _close_refused(self, verb: Advance) -> None:
        if verb.close and verb.context not in self._requests:
            self.store.close(self.store.contexts[verb.context])

    def _control(self, verb: Control) -> Reply:
        if verb.op == "stats":
            return Reply(verb.id, data=self.stats_now())
        if verb.op == "flush":
            if self.waiting or self.running:
                busy = len(self.waiting) + len(self.running)
                return Reply(verb.id, False, f"{busy} requests are under way; flush when idle")
            return Reply(verb.id, data={"tokens": self.store.flush()})
        if verb.op == "ping":
            return Reply(verb.id)
        return Reply(verb.id, False, f"unknown control {verb.op!r}; use stats, flush or ping")

    # -- the loop --------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[Event]:
        """Plan, run, collect. Returns the events of one pass, [] where there was nothing to do."""
        batch = self.plan()
        events: list[Event] = [self._end(request, "done") for request in self._filled]
        self._filled.clear()
        if batch.rows:
            try:
                result = self.executor.run(batch)
            except Exception as error:
                return events + self._fail_batch(batch, error)
            events += self._collect(batch, result.rows)
        return events

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
                self._retract([self.running[number] for number in decision.retract])
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
                self._filled.append(request)
                continue
            if not self.store.grow(context, count):
                self.stats.plan_misses += 1
                continue
            prompt = context.saved < request.prompt
            rows[number] = make_rows(request, count, self.info.eos)
            self.store.advance(context, count, publish=prompt)
            request.passes += 1
            if count > 1 or prompt:
                used += count
        return used, saved

    def _admit(self, request: Request) -> None:
        del self.waiting[request.id]
        self.running[request.id] = request
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

    def _retract(self, requests: Sequence[Request]) -> None:
        """Back to their places in the queue. What was computed stays in the cache while it can."""
        for request in requests:
            self.store.release(request.context)
            self.waiting[request.id] = self.running.pop(request.id)
            self.reserve.retracted()
        self.waiting = dict(sorted(self.waiting.items(), key=lambda item: item[1].arrival))
        self.stats.retractions += len(requests)
        self._matches.clear()  # they may have grown since they were matched

    def _collect(self, batch: Batch, outputs: Sequence[RowOutput]) -> list[Event]:
        events: list[Event] = []
        self.stats.passes += 1
        self.stats.computed_tokens += batch.num_tokens
        last = {row.context: i for i, row in enumerate(batch.rows)}
        for i, (row, out) in enumerate(zip(batch.rows, outputs)):
            request = self._requests.get(row.context)
            if request is None or (i < last[row.context] and not out.error):
                continue  # ended by an earlier row, or more rows of it follow
            news = self._collector.collect(request, row, out)
            events += news
            if news and isinstance(news[-1], Done | Failed):
                self._forget(request)
        return events

    def _fail_batch(self, batch: Batch, error: Exception) -> list[Event]:
        """The pass raised: its rows' KV was never written, though the tree may show it. Its
        requests fail, all others start over, and the cache is emptied."""
        failed = {row.context for row in batch.rows}
        self.stats.failed_passes += 1
        for request in self.running.values():
            if request.context.id in failed:
                self.store.release(request.context, keep=False)
        self._retract([r for r in self.running.values() if r.context.id not in failed])
        self.store.flush()
        events: list[Event] = []
        for number in failed:
            request = self._requests[number]
            text = f"the forward pass failed: {type(error).__name__}: {error}"
            events.append(Failed(request.id, "internal", text))
            self.stats.failed += 1
            self._forget(request)
        return events

    def _end(self, request: Request, reason: str) -> Done:
        """End a request from outside its rows."""
        self._forget(request)
        return self._collector.done(request, reason)

    def _forget(self, request: Request) -> None:
        """The request has its terminal event: memory back, context idle or closed."""
        context = request.context
        self.waiting.pop(request.id, None)
        self.running.pop(request.id, None)
        del self._requests[context.id]
        if context.active:
            self.store.release(context)
        if request.close:
            self.store.close(context)

    def stats_now(self) -> dict[str, float]:
        """Counters since the start and gauges of this moment."""
        store, size = self.store, self.info.page_size
        return {
            **self.stats.as_dict(),
            "running": len(self.running),
            "waiting": len(self.waiting),
            "contexts": len(store.contexts),
            "free_tokens": store.pool.free * size,
            "evictable_tokens": store.tree.evictable * size,
            "protected_tokens": store.protected * size,
            "total_tokens": store.pool.size * size,
            "evicted_tokens": store.tree.evicted * size,
        }
