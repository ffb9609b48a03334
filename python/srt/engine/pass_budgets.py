"""PassBudgets: how many prompt tokens and decodes the next pass may compute, by engine load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.request import Request
from sglang.srt.engine.waiting_queue import WINDOW, WaitingQueue
from sglang.srt.memory.store import Store
from sglang.srt.schedule.capacity import Capacity
from sglang.srt.schedule.costs import PassTimes
from sglang.srt.schedule.prefill_budget import (
    BUDGETS,
    EngineLoad,
    Grant,
    PrefillBudget,
    ReadyRequest,
    Throttle,
)
from sglang.srt.schedule.stage_costs import WARM, PassWork, StageCost

UNLIMITED = 1 << 30  # prompt tokens a pass if ``chunked_prefill_size`` sets no limit
PIPELINED = "balance"  # the budget function for ``auto`` with several stages


class PassBudgets:
    """Grants each pass its prompt tokens and its decodes.

    Attributes:
        word: name of the budget function in ``schedule.prefill_budget.BUDGETS``.
        grant_of: the budget function.
        limits: parameters of token throttling.
        whole: the budget of a pass that is not throttled.
        costs: cost of each pipeline stage, learnt from the results.
        held: ids of running requests that get no row in the planned pass.
        hinted: whether any request has had a hint; pass times are measured from then on.
        times: measured times of passes; in a pipeline, the sum over all stages.
    """

    def __init__(self, schedule: ScheduleConfig, store: Store, stages: int) -> None:
        word = schedule.prefill_budget
        if word == "auto":
            word = "fixed" if stages == 1 else PIPELINED
        self.word, self.grant_of = word, BUDGETS[word]
        chunk = schedule.chunked_prefill_size
        most = chunk if chunk > 0 else UNLIMITED
        self.limits = replace(Throttle(), most=most, least=min(Throttle().least, most))
        self.whole = PrefillBudget(most)
        self.costs: list[StageCost] = []
        self.held: set[int] = set()
        self.hinted, self.times = False, PassTimes()
        self._latency_target_ms = schedule.latency_target_ms
        self._store, self._stages, self._filling = store, stages, True
        self._turns: dict[int, int] = {}  # request id -> last pass with a row of the request
        self._cached: dict[tuple[int, int], int] = {}  # (request id, retractions) -> cached tokens

    def prefill(
        self, running: Mapping[int, Request], queue: WaitingQueue, withheld: int
    ) -> PrefillBudget:
        """Return the prompt tokens that the next pass may compute (see ``grant``)."""
        whole = self.whole
        if self.word != "fixed":
            whole = self.grant(running, queue, withheld).prefill
        capacity = self.capacity(running)
        return whole if capacity is None else capacity.within(whole)

    def grant(self, running: Mapping[int, Request], queue: WaitingQueue, withheld: int) -> Grant:
        """Return the prompt tokens and decodes that the next pass may compute, and set ``held``.
        ``withheld``: number of pages that parked contexts keep."""
        ready, decoding, tokens, prompts, pending = [], 0, 0, [], 0
        for number, request in running.items():
            length = len(request.context.tokens)
            rest = length - request.context.saved
            if rest > 1:
                prompts.append((request.context.saved, rest))
                pending += rest
            elif rest == 1 or request.pending:
                decoding += 1
                tokens += length
                if not request.pending:
                    turn = self._turns.get(number, 0)
                    ready.append(ReadyRequest(turn, request.scheduling.arrival, number, length))
        ready.sort()
        prompts += self._waiting(queue, self.limits.iterations * self.limits.most - pending)
        pool = self._store.pool.size
        granted = self.grant_of(
            EngineLoad(
                self._stages, self.limits, ready, decoding, tokens, prompts,
                max(self._store.available - withheld, 0) / pool, self.slowest, self._filling,
            )
        )  # fmt: skip
        self._filling = granted.filling
        self.held = {item.id for item in ready[granted.decodes :]}
        return granted

    def lift(self) -> PrefillBudget:
        """Let every running request have a row in the planned pass. Return its whole budget."""
        self.held = set()
        self._filling = False
        return self.whole

    @property
    def slowest(self) -> StageCost | None:
        """Cost of the slowest stage; None until ``WARM`` passes were measured."""
        slowest = max(self.costs, key=lambda cost: cost.usual, default=None)
        return slowest if slowest is not None and slowest.passes >= WARM else None

    def capacity(self, running: Mapping[int, Request]) -> Capacity | None:
        """Return the capacity for further requests; None if no request has had a hint."""
        if not self.hinted or self.times.passes < WARM:
            return None
        rest = sum(request.context.work for request in running.values())
        capacity = Capacity(self.times, self._latency_target_ms, self._held + rest)
        for request in running.values():
            capacity.join(request.scheduling.hint)
        return capacity

    @property
    def _held(self) -> int:
        """Tokens of KV that requests hold; a token shared by several requests counts once."""
        return (self._store.pool.size - self._store.available) * self._store.page_size

    def planned(self, number: int, requests: Iterable[int], running: Mapping[int, Request]) -> None:
        """Note the ids of the requests with a row in pass ``number``."""
        self._turns.update(dict.fromkeys(requests, number))
        if len(self._turns) > 2 * len(running) + 64:
            self._turns = {n: turn for n, turn in self._turns.items() if n in running}

    def learn(self, batch: Batch, result: StepResult) -> None:
        """Learn stage costs and pass times from the result of a pass, if anything uses them."""
        measured = result.stages or ((result.seconds,) if result.seconds else ())
        if not measured or not batch.rows:
            return
        if self.hinted:
            prompts = sum(len(row.tokens) for row in batch.rows if len(row.tokens) > 1)
            self.times.add(self._held, prompts, 1e3 * sum(measured))
        if self.word == "fixed":
            return
        while len(self.costs) < len(measured):
            self.costs.append(StageCost())
        work = PassWork.of(batch)
        for cost, seconds in zip(self.costs, measured):
            cost.add(work, 1e3 * seconds)

    def _waiting(self, queue: WaitingQueue, most: int) -> list[tuple[int, int]]:
        """Return waiting prompts, (cached tokens, tokens to compute), until ``most`` to compute."""
        found: list[tuple[int, int]] = []
        for request in islice(queue.requests.values(), WINDOW):
            if most <= 0:
                break
            key = request.id, request.stats.retractions
            cached = self._cached.get(key)
            if cached is None:
                match = self._store.match(request.context, request.match_limit)
                cached = self._cached[key] = match.tokens + match.host
            rest = max(len(request.context.tokens) - cached, 1)
            found.append((cached, rest))
            most -= rest
        if len(self._cached) > 2 * len(found) + WINDOW:
            self._cached = {k: n for k, n in self._cached.items() if k[0] in queue.requests}
        return found
