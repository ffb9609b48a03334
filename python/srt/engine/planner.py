"""Planner: keeps the queue and the running requests, and plans the next forward pass.

The scheduler decides from counts (``View``), the store assigns KV pages, the worker gets rows. A
plan takes pages and advances ``Context.saved`` and ``ready``, so the pass must be computed.

A pass may be planned while the previous pass is in flight and its samples are unknown. A request
whose sample is in flight continues from a placeholder token (``Row.follows``). A request on its
last token drains: its pages are freed at once. Passes run in the order they were planned, so a
later pass cannot disturb a pass in flight. A request may turn out to have ended (a stop) when its
next row is already in flight; the sample of that row is dropped.

In a pipeline several passes are in flight. A request whose sample is in flight then has no work
until the sample is collected (the hold rule), so no row has a placeholder. A request with a grammar
or drafts delays only itself. Chunks of one prompt may still be in consecutive passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from operator import itemgetter

from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.clock import Clock
from sglang.srt.core.context import Context
from sglang.srt.core.ints import ints
from sglang.srt.core.request import NEVER, Request
from sglang.srt.core.work import STEP_LOOKUP, STEP_MOVES, STEP_NUMBERS
from sglang.srt.disk.spill import Spill
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.engine_stats import EngineStats
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.masks import GrammarBudget, PassMasks, by_cost
from sglang.srt.engine.pass_budgets import PassBudgets
from sglang.srt.engine.planned_pass import PassPart, PlannedPass
from sglang.srt.engine.rows import make_rows
from sglang.srt.engine.waiting_queue import WaitingQueue
from sglang.srt.interception.attained import AttainedService
from sglang.srt.interception.parked import Parked
from sglang.srt.memory.match import Match
from sglang.srt.memory.store import Store
from sglang.srt.schedule.costs import Costs
from sglang.srt.schedule.prefill_budget import PrefillBudget
from sglang.srt.schedule.scheduler import AGING, Reserve, pages, plan
from sglang.srt.schedule.scheduler_view import Item, View
from sglang.srt.schedule.transfer import TransferBudget, transfer_of
from sglang.srt.spaces.space_door import SpaceDoor

ROUNDS = 4  # plans a pass: a later round uses what prefix sharing or retraction has freed
_item_arrival = itemgetter(Item._fields.index("arrival"))


class Planner:
    """Decides and prepares passes.

    Attributes:
        queue: waiting requests.
        running: running requests by id.
        draining: requests by id whose last pass is in flight; they hold no memory.
        filled: ``Fill`` requests whose tokens all have KV; the engine ends them.
        new_budget: function that makes the processor time budget for a pass's grammars.
        lookup: most tokens of waiting requests that one step looks up in the cache.
        costs: costs of passes and copies, learnt from the results.
        stages: number of pipeline stages; with 1, rows may have placeholders (``Row.follows``).
        budgets: limits on the work of a pass.
        parked: contexts that wait for the result of a tool.
        movable: most tokens whose KV a pass may copy to host memory, and most from host memory.
        door: spaces, the KV pages of inferlets; the engine sets this.
        spill: KV to copy to host memory while the engine is idle; None: no such copies.
        attained: number of tokens computed so far for each program.
    """

    def __init__(
        self,
        info: EngineInfo,
        schedule: ScheduleConfig,
        store: Store,
        stats: EngineStats,
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
        self.stages = 1
        self.budgets = PassBudgets(schedule, store, 1)
        self.costs = costs = Costs()
        self.parked = Parked(schedule.park_policy, store, costs, clock, info.kv_bytes_per_token)
        self._transfer: TransferBudget | None = None  # budget of the pass being planned
        self._acted = False  # the park policy has acted for the planned pass
        self.movable = STEP_MOVES
        self.spill: Spill | None = None
        self.attained = AttainedService()
        self.door: SpaceDoor | None = None
        self._admitted = 0  # tokens of the requests that this step has admitted
        self._numbers = 0  # log-probabilities of prompts that this step may still report
        self._postponed = 0  # ``EngineStats.postponed_rows`` at the end of the last plan
        self.queue = WaitingQueue(schedule.schedule_policy == "priority")
        self.running: dict[int, Request] = {}
        self.draining: dict[int, Request] = {}
        self.filled: list[Request] = []
        self._matches: dict[int, Match] = {}  # by id of a waiting request, at ``_matched_at``
        self._matched_at = -1  # version of the store
        self._follows: dict[int, int] = {}  # request id -> row in flight that samples its token

    def pipelined(self, stages: int) -> None:
        """Plan for a pipeline of ``stages`` stages from now on."""
        self.stages, self.budgets = stages, PassBudgets(self.schedule, self.store, stages)

    # -- the queue -------------------------------------------------------------------------------

    @property
    def waiting(self) -> dict[int, Request]:
        """Waiting requests by id."""
        return self.queue.requests

    def put(self, request: Request) -> None:
        """Add a request to the queue, in the order of ``RequestSpec.arrived``."""
        request.scheduling.drafted = bool(self.drafts.sources(request))
        self.budgets.hinted |= request.scheduling.hint is not None
        self.queue.put(request)

    def drop(self, request: Request) -> None:
        """Forget a request that has ended."""
        self.queue.remove(request)
        self.running.pop(request.id, None)
        self.draining.pop(request.id, None)
        self.drafts.forget(request)

    def retract(self, requests: Sequence[Request]) -> None:
        """Move running requests back to their old positions in the queue. Their KV stays in the
        radix cache, evictable. A request with a placeholder waits until its sample is collected."""
        for request in requests:
            self.store.release(request.context)
            self.queue.put_back(self.running.pop(request.id))
            self.reserve.retracted()
            request.stats.retractions += 1
        self.stats.retractions += len(requests)
        self._matches.clear()  # a context may have grown since it was matched

    def requeue(self, requests: Sequence[Request]) -> None:
        """Move draining requests whose last pass failed back to their positions in the queue."""
        for request in requests:
            self.queue.put_back(self.draining.pop(request.id))
            request.stats.retractions += 1
        self.stats.retractions += len(requests)

    # -- the plan --------------------------------------------------------------------------------

    def plan(self, in_flight: PlannedPass | None = None) -> PlannedPass:
        """Decide and prepare the next pass: take pages, advance contexts, make rows. The pass may
        have no rows.

        Args:
            in_flight: the previous pass, if it has not been collected. Its ``waits`` must be
                False.
        """
        self._follows.clear()
        self._transfer, self._acted = None, False
        self._admitted, self._numbers = 0, STEP_NUMBERS
        if in_flight is not None:
            self._foresee(in_flight)
        planned = PlannedPass(Batch(self.step_number + 1, []), PassMasks(self.new_budget()))
        retracted, throttled = False, self.budgets.word != "fixed"
        if self.parked:
            self.parked.expire()
        withheld = self.parked.withheld if self.parked else 0
        budget = self.budgets.prefill(self.running, self.queue, withheld)
        spaces = None if self.door is None else self.door.spaces
        for _ in range(ROUNDS):
            # A request that was just retracted is not admitted again at once.
            slots = 0 if retracted else self.schedule.max_running_requests - len(self.running)
            view = self._view(planned, budget, slots, withheld)
            decision = plan(view, self.schedule.schedule_policy, self.schedule.max_overtakes)
            idle = not (decision.rows or decision.retract or planned.parts or in_flight)
            if idle and (withheld or throttled):
                # No work fits: use the pages of parked contexts, and lift the throttling.
                withheld, throttled, budget = 0, False, self.budgets.lift()
                continue
            if spaces is not None and spaces.give_way(view, decision, idle):
                continue
            if decision.retract:
                retracted = True
                self.retract([self.running[number] for number in decision.retract])
            budget, saved = self._apply(self._ordered(decision.rows, planned), planned, budget)
            if not (decision.retract or saved):
                break
        if self._transfer is not None:
            self._load_idle(planned)
        if spaces is not None:
            spaces.plan(planned.batch, planned.adapters, in_flight.batch.id if in_flight else -1)
        if self.spill is not None and not (self.running or self.waiting or planned.batch.rows):
            self.spill.save(self.movable // self.info.page_size)
        planned.batch.moves = self.store.moves(planned.batch.id)
        if planned.needed:
            planned.batch.dropped = self.store.dropped()
            self.step_number += 1
            self.reserve.passed()
            if self.budgets.word != "fixed":
                self.budgets.planned(planned.batch.id, planned.parts, self.running)
        self._postponed = self.stats.postponed_rows
        return planned

    def _foresee(self, in_flight: PlannedPass) -> None:
        """Account for the last pass in flight. A request that will sample again gets a placeholder
        token, filled on the device (``Row.follows``); in a pipeline it gets none, and has no work.
        A request on its last token moves to ``draining`` and frees its pages now: passes run in the
        order they were planned, so a later pass may reuse them."""
        follow = self.stages == 1
        for number, (request, _, last, complete) in in_flight.parts.items():
            if not complete or self.running.get(number) is not request:  # aborted or retracted
                continue
            if request.growth > request.pending:
                if follow:
                    request.context.tokens.append(0)
                    self._follows[number] = last
            elif request.generation.matcher is None:  # a grammar may postpone the last token
                self.draining[number] = self.running.pop(number)
                self.store.release(request.context)

    def _view(self, planned: PlannedPass, budget: PrefillBudget, slots: int, withheld: int) -> View:
        size, parts, loaded, running = self.info.page_size, planned.parts, planned.loaded, []
        for number, r in self.running.items():
            context = r.context
            saved = context.saved
            growth = r.spec.limit - len(r.generation.tokens) - r.pending
            running.append(
                Item(number, r.scheduling.arrival, len(context.tokens) - saved, growth,
                     len(context.pages) * size - saved, 0, 0, number in parts or number in loaded)
            )  # fmt: skip
        if held := self.budgets.held:
            running = [item._replace(work=0) if item.id in held else item for item in running]
        running.sort(key=_item_arrival)
        queued: Iterable[Request] = ()
        if slots > 0 and budget.open:
            queued = self.queue.first(self.lookup - self._admitted, bool(self._admitted))
        if self.stages > 1:  # many passes could overtake a request whose sample is in flight
            queued = takewhile(lambda r: not r.pending, queued)
        waiting = [
            Item(r.id, r.scheduling.arrival, len(r.context.tokens), r.growth, 0, r.spec.priority,
                 r.scheduling.overtaken, False, r.scheduling.hint,
                 self.attained.level(r.scheduling.hint))
            for r in queued
            if not r.pending  # a sample in flight must be collected first
        ]  # fmt: skip
        available = max(self.store.available - withheld, 0)
        return View(
            planned.batch.id, running, waiting, available, size, budget, slots,
            self.reserve.share, self._match,
            lambda number: self.store.exclusive(self.running[number].context),
            lambda number: self.running[number].context.saved, self.budgets.capacity(self.running),
        )  # fmt: skip

    def _match(self, number: int) -> Match:
        """Return the cached prefix of a waiting request. Cached until ``Store.version`` changes."""
        version = self.store.version
        if self._matched_at != version:
            self._matched_at = version
            self._matches.clear()
        if number not in self._matches:
            request = self.waiting[number]
            self._matches[number] = self.store.match(request.context, request.match_limit)
        return self._matches[number]

    def _ordered(
        self, decided: list[tuple[int, int]], planned: PlannedPass
    ) -> list[tuple[int, int]]:
        """Return the decided rows. If a row was postponed since the last plan, rows with cheap
        grammars come first. The pass's adapters are still chosen in the scheduler's order."""
        if self.stats.postponed_rows == self._postponed:
            return decided
        for number, _ in decided:
            if number in self.running:
                self._adapts(planned, self.running[number].context)
        return by_cost(decided, self.running)

    def learn(self, batch: Batch, result: StepResult) -> None:
        """Learn the costs of a pass and of its copies from its result."""
        self.budgets.learn(batch, result)
        if self.store.host is None:
            return
        self.costs.computed(batch.num_tokens, result.seconds)
        if batch.moves is not None:
            count = len(batch.moves.stores) + len(batch.moves.loads)
            self.costs.copied(count * self.info.page_size, result.copy_seconds)

    # -- rows ------------------------------------------------------------------------------------

    def _apply(
        self, decided: list[tuple[int, int]], planned: PlannedPass, budget: PrefillBudget
    ) -> tuple[PrefillBudget, int]:
        """Make rows of the scheduler's decision, pairs (request id, tokens). Return the budget
        left, and the number of decided tokens that these rows do not compute."""
        saved = 0
        if self._transfer is None and self.store.host is not None:
            self._transfer = self.store.transfer = transfer_of(
                self.costs, decided, self._host_tokens, self.info.page_size, self.movable,
                self.store.transfer.awaited if self.store.transfer is not None else 0,
            )  # fmt: skip
        if decided and self.parked and not self._acted:
            self._act(decided)
        proposed = self._proposed(decided)
        for number, count in decided:
            request = known = self.running.get(number)
            if request is None:
                request = self._admit(self.waiting[number], count, planned)
                count = count or 1  # 0 decided: the cached KV may have been evicted since (parked)
            context = request.context
            if known is not None and len(context.tokens) - context.saved > 1:
                most = count + self._unowed(decided)
                gained = self._acquire(request, most)
                saved += gained
                count = min(count, most - gained)
                if self.store.host is not None:
                    loaded = self._load(request, count, planned, most - gained)
                    self._found(request, loaded)
                    count = max(min(count, most - gained - loaded), 0)
            work = len(context.tokens) - context.saved
            if count > work:
                saved += count - work
                count = work
            if work == 0:
                self.filled.append(request)
            waits = planned.loaded.get(number, False)
            saved += count if waits else 0  # other requests may use its share of the budget
            if waits or count == 0:
                continue
            if not (self._adapts(planned, context) and self.store.writes_alone(context)):
                continue
            prompt = context.saved < request.spec.prompt
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
                request.plan_outputs(context.saved + count)
            self.store.advance(context, count, publish=prompt)
            count -= len(drafts)  # drafts do not count against the budget
            if count > 1 or prompt:
                budget = budget.after(context.saved - count, count)
        return budget, saved

    def _act(self, decided: Sequence[tuple[int, int]]) -> None:
        """Apply the decisions of the parking policy to the KV of parked contexts."""
        self._acted = True
        others = sum(len(request.context.tokens) for request in self.running.values())
        chunk = max(self.schedule.chunked_prefill_size - len(self.running), 1)
        self.parked.act(self._transfer, others, chunk, sum(count for _, count in decided))

    def _host_tokens(self, number: int) -> int:
        """Return how many tokens of a request host memory has after those on the device."""
        request = self.running.get(number)
        if request is None:
            return self._match(number).host
        return self.store.on_host(request.context, request.match_limit)

    def _reported(self, request: Request, count: int) -> int:
        """Return ``count``, cut to the log-probabilities that this step may still report; >= 1."""
        spec, unscored = request.spec, request.outputs.unscored
        each = spec.top + len(spec.probe)
        if not each or unscored >= spec.prompt:
            return count
        silent = max(unscored - 1 - request.context.saved, 0)  # tokens without log-probabilities
        count = min(count, silent + max(self._numbers // each, 1))
        self._numbers -= max(count - silent, 0) * each
        return count

    def _adapts(self, planned: PlannedPass, context: Context) -> bool:
        """Add the context's adapter to the pass. Return False if the pass has no room for it."""
        adapter = context.namespace.adapter
        if adapter and adapter not in planned.adapters:
            if len(planned.adapters) >= self.info.max_loras_per_batch:
                return False
            planned.adapters.add(adapter)
        return True

    def _add(
        self, request: Request, count: int, drafts: Sequence[int], planned: PlannedPass
    ) -> None:
        """Add the request's next ``count`` tokens to the pass."""
        context, rows = request.context, planned.batch.rows
        follows = self._follows.get(request.id, -1)
        first = len(rows)
        rows += make_rows(request, count, self.info.eos, drafts, follows, self.info.sections,
                          planned.masks)  # fmt: skip
        if request.scheduling.hint is not None:
            self.attained.serve(request.scheduling.hint, count)
        complete = context.saved + count == len(context.tokens)
        planned.parts[request.id] = PassPart(request, first, len(rows) - 1, complete)
        if rows[-1].sample is not None:
            request.pending += 1
            planned.waits = planned.waits or self._waits(request)

    def _waits(self, request: Request) -> bool:
        """Return whether the next pass must wait for this request's sample: masks and drafts depend
        on it. Without the wait the request would miss every other pass. False in a pipeline."""
        if self.stages > 1:
            return False
        if request.generation.matcher is not None:  # the last token, too, may be postponed
            return True
        drafted = request.scheduling.drafted and request.growth > request.pending
        return drafted and self.drafts.wanted(request, len(self.running))

    # -- drafts ----------------------------------------------------------------------------------

    def _proposed(self, decided: Sequence[tuple[int, int]]) -> Mapping[int, list[int]]:
        """Return drafts for the requests that sample in this plan, by id."""
        ready = [
            request
            for number, count in decided
            if (request := self.running.get(number)) is not None
            and request.scheduling.drafted
            and number not in self._follows
            and request.context.saved >= request.spec.prompt
            and count >= request.context.work
        ]
        return self.drafts.propose(ready, len(self.running)) if ready else {}

    def _room_for(
        self, drafts: list[int], request: Request, decided: Sequence[tuple[int, int]]
    ) -> list[int]:
        """Append the drafts to the context and return them; [] if memory is short."""
        if not drafts:
            return []
        if self.store.available < sum(self._owed(decided)) + len(drafts):  # pages against tokens
            return []
        self.store.append(request.context, ints(drafts))
        return drafts

    # -- admission -------------------------------------------------------------------------------

    def _admit(self, request: Request, count: int, planned: PlannedPass) -> Request:
        self.queue.remove(request)
        self.running[request.id] = request
        self._admitted += len(request.context.tokens)
        stats, first = request.stats, request.stats.miss is None
        miss = self.store.miss(request.context, request.match_limit) if first else None
        self.store.acquire(request.context, request.match_limit)
        self.parked.admitted(request.context)
        loaded = self._load(request, count, planned)
        if miss is not None:
            miss.cover(loaded)
            stats.miss = miss
            stats.cached_tokens = min(request.context.saved, request.spec.prompt)
            stats.queue_seconds = self._clock.now() - request.spec.received
            self.stats.cached_tokens += stats.cached_tokens
            self.stats.prompt_tokens += request.spec.prompt
        if self.schedule.schedule_policy in AGING or self.budgets.hinted:
            self.queue.overtake(request)
        return request

    def _load(self, request: Request, count: int, planned: PlannedPass, most: int = NEVER) -> int:
        """Plan copies of KV from host memory for the request's next tokens, at most ``most``. The
        pass copies before it computes ``count`` tokens. Return the number of tokens to copy."""
        context, before = request.context, request.context.saved
        had = self.store.on_host(context, request.match_limit)
        if not had or self._transfer is None:
            return 0
        sure = self._transfer.loads(count, context.work - had)
        loaded = self.store.load(context, min(request.match_limit, before + most))
        waits = self._transfer.waits(had - loaded)
        if not waits:
            self._transfer.computes(min(count, context.work) - sure)
        self.stats.loaded_tokens += loaded
        if loaded or waits:
            planned.loaded[request.id] = waits
        if not request.stats.retractions:  # a retracted request may have computed them itself
            request.stats.loaded_tokens += min(loaded, max(request.spec.prompt - before, 0))
            request.stats.disk_tokens += request.scheduling.disk_tokens(before, before + loaded)
        return loaded

    def _load_idle(self, planned: PlannedPass) -> None:
        """Plan copies from host memory for running requests without a row in the pass."""
        for number, request in self.running.items():
            if number not in planned.parts and request.context.work > 1:
                self._found(request, self._load(request, 0, planned, self._unowed(())))
                if not request.context.work:  # only a Fill may have all its KV from the cache
                    self.filled.append(request)

    def _unowed(self, decided: Sequence[tuple[int, int]]) -> int:
        """Return the number of tokens that fit into the pages that no decided row needs."""
        owed = sum(pages(tokens, self.info.page_size) + 1 for tokens in self._owed(decided))
        return max(self.store.available - owed, 0) * self.info.page_size

    def _owed(self, decided: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Yield how many tokens each decided row may need pages for, cached tokens included."""
        for number, count in decided:
            waiting = self.waiting.get(number)
            yield count if waiting is None else len(waiting.context.tokens)

    def _acquire(self, request: Request, count: int) -> int:
        """Lock the cached KV of a running request's next ``count`` tokens. Return their number."""
        limit = min(request.match_limit, request.context.saved + count)
        gained = self.store.acquire(request.context, limit)
        self._found(request, gained)
        return gained

    def _found(self, request: Request, gained: int) -> None:
        """Count the prompt tokens among ``gained`` tokens that were cached after admission."""
        gained -= max(request.context.saved - request.spec.prompt, 0)
        if gained > 0 and not request.stats.retractions:  # else it may have computed them
            request.stats.cached_tokens += gained
            self.stats.cached_tokens += gained
