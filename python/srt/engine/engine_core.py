"""EngineCore: applies verbs, plans and collects forward passes, returns events. If the executor's
depth is above 1, the next pass is planned while a pass is computed. States of a context:

    idle       open, without a request
    waiting    the request is queued and holds no KV pages
    running    the request was admitted: it holds pages and gets rows
    draining   the request's last pass is in flight; it holds no pages
    (done)     one terminal event, Done or Failed, was sent; the context is idle again or closed

The engine owns the requests; the store owns the contexts and KV pages; the scheduler decides from a
``View``; the executor computes. Nothing in this file uses torch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Row, RowOutput
from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.context import Context
from sglang.srt.core.device_errors import DeviceLost, lost_device
from sglang.srt.core.ints import from_bytes
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Control,
    Done,
    Event,
    Failed,
    ForkContext,
    LoadAdapter,
    Open,
    Park,
    Reply,
    Truncate,
    UnloadAdapter,
    Verb,
)
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.progress import MESSAGES, NOWHERE, PASS, PLANNING, RESULTS, Progress
from sglang.srt.core.request import Request
from sglang.srt.core.space_messages import SpaceVerb
from sglang.srt.engine import admission
from sglang.srt.engine.adapter_registry import AdapterRegistry
from sglang.srt.engine.admission import Compiling, Grammars
from sglang.srt.engine.collect import Collector
from sglang.srt.engine.disk_waits import DiskWaits
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.engine_stats import EngineStats
from sglang.srt.engine.executor import Executor
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.masks import GrammarBudget
from sglang.srt.engine.planned_pass import PlannedPass
from sglang.srt.engine.planner import Planner
from sglang.srt.engine.snapshot import snapshot
from sglang.srt.memory.store import Store
from sglang.srt.spaces.space_door import SpaceDoor
from sglang.srt.spaces.space_host import SpaceHost

log = logging.getLogger("sglang.srt.engine")
OPS = ("stats", "flush", "ping", "tree", "pause", "retract", "continue")


class EngineCore:
    """Engine loop state: one planner, one store, one executor.

    Args:
        token_bytes: the bytes of every token id; stop strings are matched on these bytes.
        seed: base of the seeds of requests that have none.
        grammars: compiler of constraints; None: requests with a constraint are refused.
        jumps: how forced text is generated (``GrammarConfig.jumps``).
        drafts: the drafters; default: grammars, and n-grams for requests that choose them.
        progress: memory in which the loop's stage is noted.
        clock: source of all times in statistics and in the cache.

    Raises ValueError if the executor's depth is below 1.
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
        if executor.depth < 1:
            raise ValueError(f"the executor's depth is {executor.depth}; it must be at least 1.")
        self.clock = clock
        self.executor = executor
        self.info = info
        self.schedule = schedule
        size = info.page_size
        self.store = Store(info.capacity // size, size, share, clock, info.host_capacity // size)
        self.stats = EngineStats()
        self.progress = progress or NOWHERE
        self._drafts = drafts or Drafts(jumps)
        self.planner = Planner(info, schedule, self.store, self.stats, self._drafts, clock)
        self.planner.pipelined(max(executor.depth - 1, 1))
        self.disk = DiskWaits(executor.disk, self.planner, clock)
        self.paused = False  # no pass is planned; set by a Control
        self.lost = ""  # the device's error after which no pass can be computed; "": none
        self.requests: dict[int, Request] = {}  # by context id
        self._in_flight: deque[PlannedPass] = deque()
        self._accepted = 0
        self._seed = seed
        self._compiling = Compiling(grammars)
        self.adapters = AdapterRegistry(executor, info, self.store)
        host = SpaceHost(self.planner, clock, self.adapters.number, self._accept)
        self.door = self.planner.door = SpaceDoor(host, info, self.planner.budgets.whole.tokens)
        self._collector = Collector(info.eos, token_bytes, self.stats, self.store, jumps, clock)

    @property
    def waiting(self) -> dict[int, Request]:
        return self.planner.waiting

    @property
    def running(self) -> dict[int, Request]:
        return self.planner.running

    # -- verbs -----------------------------------------------------------------------------------

    def handle(self, verbs: Sequence[Verb]) -> list[Event]:
        """Apply verbs in order, then queue the requests whose grammar is ready. An Advance that
        cannot be applied fails its request; other such verbs count as ``bad_verbs``."""
        events: list[Event] = []
        for verb in verbs:
            self.progress.at(MESSAGES, verb.request if isinstance(verb, Advance) else 0)
            try:
                self._apply(verb, events)
            except Exception as error:
                if isinstance(verb, Advance):
                    self.stats.rejected += 1
                    events.append(admission.refusal(verb.request, error))
                elif isinstance(error, (ValueError, KeyError, OverflowError)):
                    self.stats.bad_verbs += 1
                else:
                    raise
        self.progress.at(MESSAGES)
        self.door.stepped(True)
        if not any(planned.waits for planned in self._in_flight):
            self._compiled(events)
        self.disk.turn(bool(self._in_flight))
        if self.adapters.pending:
            events += self.adapters.settle()
        return self.door.events(events, self._in_flight)

    def _apply(self, verb: Verb, events: list[Event]) -> None:
        if isinstance(verb, Open):
            tokens = from_bytes(verb.tokens)
            space = Namespace(verb.namespace, self.adapters.number(verb.adapter))
            self.store.open(verb.context, tokens, space, verb.segments, verb.media)
        elif isinstance(verb, Advance):
            self._accept(verb, events)
        elif isinstance(verb, Close):
            context = self.store.contexts.get(verb.context)
            if context is None:
                return  # the request's end closed the context; the client had not read that yet
            request = self.requests.get(verb.context)
            if request is not None:
                events += self._end(request, "abort")
            if verb.context in self.store.contexts:
                self._close(context)
        elif isinstance(verb, ForkContext):
            parent = self.store.contexts[verb.context]
            busy = self.requests.get(verb.context)
            known = len(parent.tokens) if busy is None else busy.known
            length = min(verb.length, known) if verb.length >= 0 else known
            if busy is None:
                admission.inherit(parent, self.info)
            self.store.fork(parent, verb.child, length)
        elif isinstance(verb, Append):
            self.store.append(self._idle(verb.context), from_bytes(verb.tokens))
        elif isinstance(verb, Park):
            self.planner.parked.park(verb, self._idle(verb.context))
        elif isinstance(verb, Truncate):
            if verb.length < 0:
                raise ValueError(f"a context cannot be cut to {verb.length} tokens")
            self.store.truncate(self._idle(verb.context), verb.length)
        elif isinstance(verb, SpaceVerb):
            self.door.apply(verb)
        elif reply := self._control(verb):
            events.append(reply)

    def _idle(self, number: int) -> Context:
        context = self.store.contexts[number]
        if number in self.requests:
            raise ValueError(f"context {number} has an unfinished request; close it or wait")
        return context

    def _accept(self, verb: Advance, events: list[Event]) -> None:
        context = self.store.contexts[verb.context]
        held = (self.waiting, self.running, self.planner.draining, self._compiling, self.disk)
        if any(verb.request in requests for requests in held):
            self.stats.bad_verbs += 1  # a Failed event would end the other request of this number
            return
        queued = len(self.waiting) + len(self._compiling) + len(self.disk)
        if queued >= (limit := self.schedule.max_queued_requests):
            reason = f"{queued} requests are waiting and {limit} may (--max-queued-requests)"
            events.append(Failed(verb.request, "busy", f"{reason}; try again later"))
            self.stats.rejected += 1
            return self._close_refused(verb)
        try:
            admission.verify(verb.goal, self._idle(verb.context), self.info)
            seed = admission.seed_of(verb.goal, self._seed, self._accepted)
            request = admission.new_request(verb, context, seed, self.clock.now(), self.progress)
            end = self._collector.resumed(request)
            constraint = admission.constraint_of(verb.goal)
            if constraint is not None and end is None:
                self._compiling.put(request, constraint)
        except Exception:
            self._close_refused(verb)
            raise
        self._accepted += 1
        self.stats.received += 1
        self.requests[context.id] = request
        self.planner.parked.returned(context.id)
        if end is not None:
            events.append(end)
            self._forget(request)
        elif constraint is None:
            self.disk.put(request)

    def _compiled(self, events: list[Event]) -> None:
        """Queue the requests whose grammar is ready; end those that need no pass; fail those whose
        grammar cannot be made. Not to be called while the worker's thread may make masks: matchers
        of one grammar share caches."""
        budget = self.planner.new_budget()
        for request, error in self._compiling.ready():
            if error is not None:
                self.stats.failed += 1
                events.append(admission.refusal(request.id, error))
                self._forget(request)
                continue
            with budget.charge(request):
                news = self._guarded(request, partial(self._collector.begin, request, budget))
            self.progress.at(MESSAGES)
            events += news
            if news and isinstance(news[-1], Done | Failed):
                self._forget(request)
            else:
                self.disk.put(request)

    def _close_refused(self, verb: Advance) -> None:
        if verb.close and verb.context not in self.requests:
            self._close(self.store.contexts[verb.context])

    def _close(self, context: Context) -> None:
        self.planner.parked.end(context.id)
        self.store.close(context)

    # -- the loop --------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        if self._in_flight or self.paused or self.door.starved:
            return bool(self._in_flight)
        return bool(self.disk.work) or self.door.work

    @property
    def compiling(self) -> int:
        """Number of grammars, adapters and disk copies in flight, which ``handle`` checks."""
        return len(self._compiling) + self.adapters.pending + self.disk.pending

    def step(self) -> list[Event]:
        """Plan and submit a pass. Collect the oldest if the plan is empty or the depth reached."""
        events: list[Event] = []
        self._collector.searched = 0
        passes = self._in_flight
        if passes and passes[-1].waits:
            events += self._finish()
            self._compiled(events)
        if self.paused:
            return self.door.events(events + (self._finish() if passes else []), passes)
        self.progress.at(PLANNING)
        planned = self.planner.plan(passes[-1] if passes else None)
        for request in self.planner.filled:
            events += self._end(request, "done")
        self.planner.filled.clear()
        if planned.needed:
            self.executor.submit(planned.batch, planned.masks)
            passes.append(planned)
        self.door.stepped(bool(passes or events))
        if passes and (not planned.batch.rows or len(passes) == self.executor.depth):
            events += self._finish()
        self.disk.turn(bool(self._in_flight))
        return self.door.events(events, self._in_flight)

    def close(self) -> None:
        """Stop the executor, the disk's threads and the adapters' thread."""
        self.executor.close()
        self.disk.close()
        self.adapters.close()

    def _finish(self) -> list[Event]:
        """Wait for the oldest pass in flight and collect it."""
        oldest = self._in_flight.popleft()
        self.progress.at(PASS)
        try:
            result = self.executor.result()
        except Exception as error:
            self.lost = lost_device(error)
            return self._lose(oldest, error) if self.lost else self._fail(oldest, error)
        self.progress.at(RESULTS)
        if self.store.host is not None:
            self.store.host.collected(oldest.batch.id)
        self.planner.learn(oldest.batch, result)
        self.stats.computed(oldest.batch, result)
        events = self._collect(oldest, result.rows)
        self.door.collect(oldest.batch.id, result.rows)
        return events

    def _collect(self, computed: PlannedPass, outputs: Sequence[RowOutput]) -> list[Event]:
        events: list[Event] = []
        rows, budget = computed.batch.rows, self.planner.new_budget()
        # First: other rows may have read wrong KV, and the tree may hold KV of ended requests.
        for key, error in {key: out.error for out in outputs for key in out.unseen}.items():
            events += self._unseen(key, error)
        for request, first, last, complete in computed.parts.values():
            if self.requests.get(request.context.id) is not request:
                continue  # the request has ended meanwhile
            index = last  # the first failed row, else the last row
            if first != last:
                index = next((i for i in range(first, last) if outputs[i].error), last)
            row, out = rows[index], outputs[index]
            request.stats.forward_passes += 1
            if row.sample is not None:
                request.pending -= 1
            generation = request.generation
            if generation.matcher is None:
                news = self._row(request, row, out, complete, budget)
            else:
                collect = partial(self._row, request, row, out, complete, budget)
                with budget.charge(request):
                    news = self._guarded(request, collect)
            if generation.matcher is not None or generation.watch is not None:
                self.progress.at(RESULTS)  # grammars and stop searches set stages of their own
            events += news
            if news and isinstance(news[-1], Done | Failed):
                self._forget(request)
        return events

    def _unseen(self, key: bytes, error: str) -> list[Event]:
        """Fail all requests with the image or video ``key``, which could not be encoded, and drop
        its KV, which is wrong, from the cache."""
        events: list[Event] = []
        for request in list(self.requests.values()):
            if any(medium.key == key for medium in request.context.media):
                events += self._collector.failed(request, error)
                self._forget(request)
        self.store.disown(key)
        return events

    def _row(
        self, request: Request, row: Row, out: RowOutput, complete: bool, budget: GrammarBudget
    ) -> list[Event]:
        samples = self._drafts.verify(self.store, request, row, out) if row.checks else (out,)
        return self._collector.collect(request, row, out, samples, complete, budget)

    def _guarded(self, request: Request, collect: Callable[[], list[Event]]) -> list[Event]:
        """Return the result of ``collect``. If the grammar raises, fail only this request."""
        try:
            return collect()
        except Exception as error:
            log.exception("a grammar failed")
            text = f"the grammar failed: {type(error).__name__}: {error}"
            return self._collector.failed(request, text)

    def _fail(self, failed: PlannedPass, error: Exception) -> list[Event]:
        """Fail the requests of a pass that raised, requeue all others, and empty the cache: the
        tree may hold pages whose KV the pass should have written. Later passes may have read these
        pages, so their results are dropped."""
        dropped = list(failed.batch.dropped)
        while self._in_flight:
            dropped += self._in_flight.popleft().batch.dropped
            with suppress(Exception):
                self.executor.result()
        self.stats.failed_passes += 1
        ended = [
            request
            for request, *_ in failed.parts.values()
            if self.requests.get(request.context.id) is request
        ]
        for request in ended:
            if request.context.active:
                self.store.release(request.context, keep=False)
        self.planner.retract([r for r in self.running.values() if r.context.active])
        self.planner.requeue([r for r in self.planner.draining.values() if r not in ended])
        self.store.drop_again(dropped)
        text = f"the forward pass failed: {type(error).__name__}: {error}"
        self.door.failed(text)
        self.store.flush("failed")
        for request in self.requests.values():
            self.store.truncate(request.context, request.known)  # drops drafts, placeholders
            request.rewind()
        events: list[Event] = []
        for request in ended:
            events += self._collector.failed(request, text)
            self._forget(request)
        return events

    def _lose(self, failed: PlannedPass, error: Exception) -> list[Event]:
        """Fail all requests after the loss of the device. Requests of the failed pass may be the
        cause and fail as "internal"; the others fail as "lost" and may be sent again."""
        self._in_flight.clear()
        self.stats.failed_passes += 1
        parts = () if isinstance(error, DeviceLost) else failed.parts.values()  # (): a rank ended
        inside, events = {request.id for request, *_ in parts}, list[Event]()
        for request in list(self.requests.values()):
            if request.id in inside:
                text = f"the forward pass failed: {type(error).__name__}: {error}"
                events += self._collector.failed(request, text)
            else:
                text = f"the device was lost ({self.lost}); the engine is started again"
                events += self._collector.failed(request, text, "lost")
            self._forget(request)
        self.door.lost(f"the device was lost ({self.lost})")
        return events

    def _end(self, request: Request, reason: str) -> list[Event]:
        """End a request for another reason than its outputs; return its last events."""
        self._forget(request)
        return self._collector.ended(request, reason)

    def _forget(self, request: Request) -> None:
        """Remove a request after its terminal event, and free all that it holds."""
        context = request.context
        self.planner.drop(request)
        self._compiling.drop(request.id)
        self.disk.drop(request.id)
        del self.requests[context.id]
        self.store.truncate(context, request.known)  # without drafts and placeholders
        if context.active:
            self.store.release(context)
        self.planner.parked.end(context.id)  # a request may end before it was admitted
        if request.spec.close:
            self.store.close(context)

    # -- controls --------------------------------------------------------------------------------

    def stats_now(self) -> dict[str, float]:
        """Return counters since the start and current gauges, by name."""
        return {
            **self.stats.as_dict(),
            "running": len(self.running) + len(self.planner.draining),
            "waiting": len(self.waiting),
            "paused": int(self.paused),
            "compiling": len(self._compiling),
            **self._compiling.counts,
            **self.adapters.counts,
            "graph_rows": self.info.graph_rows,
            "fallbacks": len(self.info.fallbacks),
            **self.store.counts,
            **self.planner.parked.counts,
            **self.disk.counts,
            **self.door.counts,
        }

    def _control(self, verb: Control | LoadAdapter | UnloadAdapter) -> Reply | None:
        """Return the reply, or None if loading or unloading has begun (``settle`` replies)."""
        if isinstance(verb, LoadAdapter):
            return self.adapters.load(verb)
        if isinstance(verb, UnloadAdapter):
            return self.adapters.unload(verb)
        if verb.op == "stats":
            return Reply(verb.id, data=self.stats_now())
        if verb.op == "flush":
            held = len(self.running) + len(self.planner.draining)
            busy = held if self.paused else len(self.requests)  # waiting requests hold no pages
            if busy:
                return Reply(verb.id, False, f"{busy} requests are in flight; flush when idle")
            return Reply(verb.id, data={"tokens": self.store.flush()})
        if verb.op == "ping":
            return Reply(verb.id)
        if verb.op in ("pause", "retract", "continue"):
            self.paused = verb.op != "continue"
            if verb.op == "retract":
                self.planner.retract([r for r in self.running.values() if r.context.active])
            return Reply(verb.id)
        if verb.op == "tree":
            requests, stats = self.requests.values(), self.stats_now()
            data = snapshot(
                self.planner, requests, stats, verb.limit, self.adapters.name, self.clock.now()
            )
            return Reply(verb.id, data=data)
        return Reply(verb.id, False, f"unknown control {verb.op!r}; use {', '.join(OPS)}")
