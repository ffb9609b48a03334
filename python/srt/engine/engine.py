"""Engine: verbs in, passes out, events back. Plan, compute, collect; while a pass is computed the
next one is planned, where the executor takes more than one at a time.

    idle       an open context without a request
    waiting    its request is queued, no memory held
    running    its request was admitted: pages held, rows planned
    leaving    its last pass is under way, no memory held
    (done)     one terminal event, Done or Failed; the context is idle again or closed

The engine owns the requests; the store owns the contexts and the memory; the scheduler decides from
a view; the executor computes. Nothing here knows torch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Row, RowOutput
from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.context import Context
from sglang.srt.core.ints import from_bytes
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Done,
    Event,
    Failed,
    Fork,
    Open,
    Truncate,
    Verb,
)
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.progress import MESSAGES, NOWHERE, PASS, PLANNING, RESULTS, Progress
from sglang.srt.core.request import Request
from sglang.srt.engine import admission
from sglang.srt.engine.adapters import Adapters
from sglang.srt.engine.collect import Collector
from sglang.srt.engine.compiling import Compiling, Grammars
from sglang.srt.engine.control import control, stats_of
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.executor import MOST_DEPTH, Executor
from sglang.srt.engine.grammar_budget import GrammarBudget
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.passes import Pass
from sglang.srt.engine.planner import Planner
from sglang.srt.engine.stats import Stats
from sglang.srt.memory.store import Store

log = logging.getLogger("sglang.srt.engine")


class Engine:
    """One scheduler, one store, one executor.

    Args:
        token_bytes: the bytes of every token id; what stop strings are matched on.
        seed: of requests that bring none.
        grammars: compiles constraints; without it they are refused.
        jumps: how forced text is written (``GrammarConfig.jumps``).
        drafts: who guesses tokens ahead; by default grammars alone, and n-grams where asked for.
        progress: where the loop tells its stage.
        clock: what every moment of the engine is measured with.

    Raises ValueError for an executor that is too deep.
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
        grammars: Grammars | None = None,
        jumps: str = "exact",
        drafts: Drafts | None = None,
        progress: Progress | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        if not 1 <= executor.depth <= MOST_DEPTH:
            raise ValueError(
                f"the executor's depth is {executor.depth}; it must be between 1 and {MOST_DEPTH}, "
                "because a row may name a token of the pass before and of no older one "
                f"(Row.follows). Use an executor of depth {MOST_DEPTH}."
            )
        self.executor = executor
        self.info = info
        self.schedule = schedule
        self.store = Store(info.capacity // info.page_size, info.page_size, share, clock)
        self.stats = Stats()
        self.progress = progress or NOWHERE
        self._drafts = drafts or Drafts(jumps)
        self.planner = Planner(info, schedule, self.store, self.stats, self._drafts, clock)
        self.paused = False  # no pass is planned; set by a Control
        self._requests: dict[int, Request] = {}  # by context id
        self._under_way: deque[Pass] = deque()
        self._accepted = 0
        self._seed = seed
        self._compiling = Compiling(grammars)
        self.adapters = Adapters(executor, info, self.store)
        self._collector = Collector(info.eos, token_bytes, self.stats, self.store, jumps, clock)

    @property
    def waiting(self) -> dict[int, Request]:
        return self.planner.waiting

    @property
    def running(self) -> dict[int, Request]:
        return self.planner.running

    # -- verbs -----------------------------------------------------------------------------------

    def handle(self, verbs: Sequence[Verb]) -> list[Event]:
        """Obey in order. A verb that cannot be obeyed fails its request, or is counted. Then see to
        the requests whose grammar has been made."""
        events: list[Event] = []
        for verb in verbs:
            self.progress.at(MESSAGES, verb.request if isinstance(verb, Advance) else 0)
            try:
                self._obey(verb, events)
            except Exception as error:
                if isinstance(verb, Advance):
                    self.stats.rejected += 1
                    events.append(admission.refusal(verb.request, error))
                elif isinstance(error, (ValueError, KeyError, OverflowError)):
                    self.stats.bad_verbs += 1
                else:
                    raise
        self.progress.at(MESSAGES)
        if not any(planned.waits for planned in self._under_way):
            self._compiled(events)
        if self.adapters.pending:
            events += self.adapters.settle()
        return events

    def _obey(self, verb: Verb, events: list[Event]) -> None:
        if isinstance(verb, Open):
            tokens = from_bytes(verb.tokens)
            space = Namespace(verb.namespace, self.adapters.number(verb.adapter))
            self.store.open(verb.context, tokens, space, verb.segments, verb.media)
        elif isinstance(verb, Advance):
            self._accept(verb, events)
        elif isinstance(verb, Close):
            context = self.store.contexts.get(verb.context)
            if context is None:
                return  # its request has closed it; the event that says so was still on its way
            request = self._requests.get(verb.context)
            if request is not None:
                events += self._end(request, "abort")
            if verb.context in self.store.contexts:
                self.store.close(context)
        elif isinstance(verb, Fork):
            parent = self.store.contexts[verb.context]
            busy = self._requests.get(verb.context)
            known = len(parent.tokens) if busy is None else busy.known
            length = min(verb.length, known) if verb.length >= 0 else known
            if busy is None:
                admission.inherit(parent, self.info)
            self.store.fork(parent, verb.child, length)
        elif isinstance(verb, Append):
            self.store.append(self._idle(verb.context), from_bytes(verb.tokens))
        elif isinstance(verb, Truncate):
            if verb.length < 0:
                raise ValueError(f"a context cannot be cut to {verb.length} tokens")
            self.store.truncate(self._idle(verb.context), verb.length)
        else:
            events += control(self, verb)

    def _idle(self, number: int) -> Context:
        context = self.store.contexts[number]
        if number in self._requests:
            raise ValueError(f"context {number} has a request under way; close it or wait")
        return context

    def _accept(self, verb: Advance, events: list[Event]) -> None:
        context = self.store.contexts[verb.context]
        held = (self.waiting, self.running, self.planner.leaving, self._compiling)
        if any(verb.request in requests for requests in held):
            self.stats.bad_verbs += 1  # an event would end the request that has this number
            return
        queued, limit = len(self.waiting) + len(self._compiling), self.schedule.max_queued_requests
        if queued >= limit:
            message = (
                f"{queued} requests are waiting and {limit} may (--max-queued-requests); "
                "try again later"
            )
            events.append(Failed(verb.request, "busy", message))
            self.stats.rejected += 1
            self._close_refused(verb)
            return
        try:
            request = self._request(verb, self._idle(verb.context))
            constraint = admission.constraint_of(verb.goal)
            if constraint is not None:
                self._compiling.put(request, constraint)
        except Exception:
            self._close_refused(verb)
            raise
        self._accepted += 1
        self.stats.received += 1
        self._requests[context.id] = request
        if constraint is None:
            self.planner.put(request)

    def _compiled(self, events: list[Event]) -> None:
        """Requests whose grammar is ready enter the queue, if anything is left to draw; those whose
        grammar cannot be made fail. Not while masks may be made in another thread: matchers of one
        grammar share what they have found out."""
        budget = self.planner.new_budget()
        for request, error in self._compiling.ready():
            if error is not None:
                self.stats.failed += 1
                events.append(admission.refusal(request.id, error))
                self._forget(request)
                continue
            with budget.charge(request):
                news = self._written(request, partial(self._collector.begin, request, budget))
            self.progress.at(MESSAGES)
            events += news
            if news and isinstance(news[-1], Done | Failed):
                self._forget(request)
            else:
                self.planner.put(request)

    def _request(self, verb: Advance, context: Context) -> Request:
        admission.verify(verb.goal, context, self.info)
        seed = admission.seed_of(verb.goal, self._seed, self._accepted)
        return admission.new_request(verb, context, seed, self.clock.now(), self.progress)

    def _close_refused(self, verb: Advance) -> None:
        if verb.close and verb.context not in self._requests:
            self.store.close(self.store.contexts[verb.context])

    # -- the loop --------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self._under_way or (not self.paused and (self.waiting or self.running)))

    @property
    def compiling(self) -> int:
        """Requests that wait for their grammar, and adapters that come or go; ``handle`` asks
        whether they are there."""
        return len(self._compiling) + self.adapters.pending

    def step(self) -> list[Event]:
        """Plan and start a pass, then collect the oldest one where no further may be under way, or
        none could be planned. Returns the events of all this."""
        events: list[Event] = []
        self._collector.searched = 0
        passes = self._under_way
        if passes and passes[-1].waits:
            events += self._finish()
            self._compiled(events)
        if self.paused:
            return events + (self._finish() if passes else [])
        self.progress.at(PLANNING)
        planned = self.planner.plan(passes[-1] if passes else None)
        for request in self.planner.filled:
            events += self._end(request, "done")
        self.planner.filled.clear()
        if planned.parts:
            self.executor.submit(planned.batch, planned.masks)
            passes.append(planned)
        if passes and (not planned.parts or len(passes) == self.executor.depth):
            events += self._finish()
        return events

    def close(self) -> None:
        """Compute nothing more."""
        self.executor.close()
        self.adapters.close()

    def _finish(self) -> list[Event]:
        """Wait for the oldest pass under way."""
        oldest = self._under_way.popleft()
        self.progress.at(PASS)
        try:
            result = self.executor.result()
        except Exception as error:
            return self._fail(oldest, error)
        self.progress.at(RESULTS)
        self.stats.computed(oldest.batch, result)
        return self._collect(oldest, result.rows)

    def _collect(self, computed: Pass, outputs: Sequence[RowOutput]) -> list[Event]:
        events: list[Event] = []
        rows, budget = computed.batch.rows, self.planner.new_budget()
        # Before all else, since other rows of the pass may have read that KV; and also of requests
        # that have ended, since the tree may show it.
        for key, error in {key: out.error for out in outputs for key in out.unseen}.items():
            events += self._unseen(key, error)
        for request, first, last, tip in computed.parts.values():
            if self._requests.get(request.context.id) is not request:
                continue  # it has ended meanwhile
            at = next((i for i in range(first, last) if outputs[i].error), last)
            row, out = rows[at], outputs[at]
            request.stats.forward_passes += 1
            if row.sample is not None:
                request.pending -= 1
            collect = partial(self._row, request, row, out, tip, budget)
            if request.matcher is None:
                news = collect()
            else:
                with budget.charge(request):
                    news = self._written(request, collect)
            if request.matcher is not None or request.watch is not None:
                self.progress.at(RESULTS)  # the stage of its own is over
            events += news
            if news and isinstance(news[-1], Done | Failed):
                self._forget(request)
        return events

    def _unseen(self, key: bytes, error: str) -> list[Event]:
        """An image or video could not be encoded, so its KV, which the tree may show, is wrong. All
        requests with that medium fail, and the cache forgets its KV."""
        events: list[Event] = []
        for request in list(self._requests.values()):
            if any(medium.key == key for medium in request.context.media):
                events += self._collector.failed(request, error)
                self._forget(request)
        self.store.disown(key)
        return events

    def _row(
        self, request: Request, row: Row, out: RowOutput, tip: bool, budget: GrammarBudget
    ) -> list[Event]:
        draws = self._drafts.verify(self.store, request, row, out) if row.checks else (out,)
        return self._collector.collect(request, row, out, draws, tip, budget)

    def _written(self, request: Request, write: Callable[[], list[Event]]) -> list[Event]:
        """Return what ``write`` returns. A grammar that breaks fails its own request only."""
        if request.matcher is None:
            return write()
        try:
            return write()
        except Exception as error:
            log.exception("a grammar failed")
            text = f"the grammar failed: {type(error).__name__}: {error}"
            return self._collector.failed(request, text)

    def _fail(self, failed: Pass, error: Exception) -> list[Event]:
        """The pass raised: its rows' KV was never written, though the tree may show it. Its
        requests fail, all others start over, and the cache is emptied. What came after it may have
        read what was never written, so it counts for nothing."""
        while self._under_way:
            self._under_way.popleft()
            with suppress(Exception):
                self.executor.result()
        self.stats.failed_passes += 1
        ended = [
            request
            for request, *_ in failed.parts.values()
            if self._requests.get(request.context.id) is request
        ]
        for request in ended:
            if request.context.active:
                self.store.release(request.context, keep=False)
        self.planner.retract([r for r in self.running.values() if r.context.active])
        self.store.flush("failed")
        for request in self._requests.values():
            request.rewind()
        events: list[Event] = []
        for request in ended:
            text = f"the forward pass failed: {type(error).__name__}: {error}"
            events += self._collector.failed(request, text)
            self._forget(request)
        return events

    def _end(self, request: Request, reason: str) -> list[Event]:
        """End a request from outside its rows."""
        self._forget(request)
        return self._collector.ended(request, reason)

    def _forget(self, request: Request) -> None:
        """The request has its terminal event: memory back, context idle or closed."""
        context = request.context
        self.planner.drop(request)
        self._compiling.drop(request.id)
        del self._requests[context.id]
        self.store.truncate(context, request.known)  # drafts that nobody drew, or a placeholder
        if context.active:
            self.store.release(context)
        if request.close:
            self.store.close(context)

    @property
    def requests(self) -> Mapping[int, Request]:
        """By context id."""
        return self._requests

    @property
    def compile_counts(self) -> Mapping[str, int]:
        return {"compiling": len(self._compiling), **self._compiling.counts}

    def stats_now(self) -> dict[str, float]:
        """Counters since the start and gauges of this moment."""
        return stats_of(self)
