"""The real engine over a pipeline in virtual time: its stages compute nothing and say how long they
would take."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Batch, RowOutput, StepResult
from sglang.srt.core.clock import ManualClock
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Done, Generate, Open, Tokens
from sglang.srt.core.workers import NO_MASKS, Masks
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.info import EngineInfo
from sglang.srt.schedule.stage_costs import PassWork

from benchmark.pipeline.loads import Asked

TOKEN = 5  # each sampled token
INTERVAL = 8  # tokens an event
BIG = 1 << 30
ASSUMED = Path(__file__).with_name("assumed_costs.json")


@dataclass(frozen=True)
class ModelCosts:
    """Milliseconds of a pass through all layers; a stage takes its share of each.

    ``max(floor, base + token n) + context Σ(L + x) + attention Σ(2 L x + x²)`` for n tokens in rows
    of x tokens after L. ``hop``: from one stage to the next.
    """

    floor: float
    base: float
    token: float
    context: float
    attention: float
    hop: float

    @staticmethod
    def read(path: Path = ASSUMED) -> ModelCosts:
        """Read a file that ``--calibrate`` wrote. Raises OSError, ValueError, KeyError."""
        data = json.loads(path.read_text())
        names = ("floor", "base", "token", "context", "attention", "hop")
        return ModelCosts(*(float(data[f"{name}_ms"]) for name in names))

    def of(self, work: PassWork, share: float) -> float:
        """Return the milliseconds of a stage with this share of the layers."""
        dense = max(self.floor, self.base + self.token * work.tokens)
        whole = dense + self.context * work.context + self.attention * work.attention
        return share * whole


@dataclass(frozen=True)
class Setting:
    """A machine and a scheduler.

    Attributes:
        budget: word of ``--prefill-budget``.
        shares: of the layers, by stage.
        capacity: tokens of KV memory.
        chunk: prompt tokens a pass, gLLM's MaxP.
        limits: changes of the other parameters of throttling.
        without: "WT" or "UT", a term of equation 3 that is left out.
    """

    budget: str
    costs: ModelCosts
    shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    capacity: int = 400_000
    chunk: int = 2048
    limits: tuple[tuple[str, Any], ...] = ()
    without: str = ""


class VirtualPipeline:
    """An executor in virtual time. A stage computes one batch at a time, in order.

    Attributes:
        busy: milliseconds that each stage has computed.
        passes: number of batches.
    """

    disk = None
    lost = ""

    def __init__(self, setting: Setting, clock: ManualClock) -> None:
        self.setting, self.clock = setting, clock
        self.depth = len(setting.shares) + 1 if len(setting.shares) > 1 else 2
        self.busy = [0.0] * len(setting.shares)
        self.spans: list[tuple[float, float]] = []  # begin and end on the first stage, seconds
        self.passes = 0
        self._free = [0.0] * len(setting.shares)
        self._flight: deque[tuple[float, StepResult]] = deque()

    def submit(self, batch: Batch, masks: Masks = NO_MASKS) -> None:
        work, now, stages = PassWork.of(batch), self.clock.now(), list[float]()
        for k, share in enumerate(self.setting.shares):
            seconds = self.setting.costs.of(work, share) / 1e3 if work.tokens else 0.0
            now = max(now, self._free[k]) + seconds
            self._free[k] = now
            self.busy[k] += seconds
            self.spans.append((now - seconds, now))
            stages.append(seconds)
            now += self.setting.costs.hop / 1e3
        self.passes += 1
        rows = [RowOutput(token=TOKEN) for _ in batch.rows]
        self._flight.append((now, StepResult(batch.id, rows, stages=stages)))

    def result(self) -> StepResult:
        at, result = self._flight.popleft()
        self.clock.advance(max(at - self.clock.now(), 0.0))
        return result

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        raise ValueError("no adapters in virtual time")

    def unload_adapter(self, number: int) -> None: ...
    def close(self) -> None: ...


@dataclass
class Life:
    """Moments of a request in seconds, 0 until they come; tokens it has generated."""

    asked: Asked
    first: float = 0.0
    ended: float = 0.0
    generated: int = 0

    @property
    def ttft(self) -> float:
        return self.first - self.asked.arrival

    @property
    def tpot(self) -> float:
        return (self.ended - self.first) / max(self.asked.answer - 1, 1)


@dataclass
class Outcome:
    """Results of a run. Seconds; means over all requests.

    Attributes:
        inside: tokens a second, prompts and answers, inside the arrival window.
        whole: the same from the first arrival to the last token.
        attained: share of the requests within both limits.
        bubble: share of the stages' time inside the arrival window in which they had no pass.
        lives: the requests.
    """

    ttft: float
    tpot: float
    e2el: float
    inside: float
    whole: float
    attained: float
    bubble: float
    retractions: int
    passes: int
    error: float
    lives: list[Life] = field(repr=False, default_factory=list)


def play(
    setting: Setting,
    requests: Sequence[Asked],
    window: float,
    slo: tuple[float, float] = (1.0, 0.25),
) -> Outcome:
    """Serve the requests. ``window``: seconds of arrivals. ``slo``: most seconds to the first
    token, and a token after it."""
    clock = ManualClock()
    pipeline = VirtualPipeline(setting, clock)
    engine = engine_of(setting, pipeline, clock)
    lives = [Life(asked) for asked in requests]
    coming, inside = deque(enumerate(lives)), 0
    while coming or engine.busy:
        while coming and coming[0][1].asked.arrival <= clock.now():
            number, life = coming.popleft()
            ask(engine, number, life.asked)
        if not engine.busy:
            clock.advance(coming[0][1].asked.arrival - clock.now())
            continue
        for event in engine.step():
            life, now = lives[getattr(event, "request", -1)], clock.now()
            if isinstance(event, Tokens):
                tokens = len(event.tokens) + (0 if life.first else life.asked.prompt)
                inside += tokens * (now <= window)
                life.first = life.first or now
                life.generated += len(event.tokens)
            elif isinstance(event, Done):
                life.ended = now
            else:
                raise RuntimeError(f"the engine failed: {event}")
    for life in lives:
        if life.generated != life.asked.answer or not life.ended:
            raise RuntimeError(f"{life.generated} tokens, not {life.asked.answer}")
    return _outcome(engine, pipeline, lives, inside / window, window, slo)


def engine_of(setting: Setting, pipeline: VirtualPipeline, clock: ManualClock) -> EngineCore:
    """Return an engine over the pipeline."""
    schedule = ScheduleConfig(
        schedule_policy="fcfs", chunked_prefill_size=setting.chunk, max_running_requests=1024,
        max_queued_requests=BIG, prefill_budget=setting.budget,
    )  # fmt: skip
    info = EngineInfo(
        model_path="", architecture="", dtype="", device="", vocab_size=BIG,
        context_length=1 << 20, capacity=setting.capacity, page_size=16, eos=(),
        max_running_requests=1024, max_queued_requests=BIG,
    )  # fmt: skip
    engine = EngineCore(pipeline, info, schedule, [b"."], share=False, clock=clock)
    change(engine, setting)
    return engine


def change(engine: EngineCore, setting: Setting) -> None:
    """Apply the changes of an ablation to the engine's budget."""
    budgets = engine.planner.budgets
    budgets.limits = replace(budgets.limits, **dict(setting.limits))
    granted = budgets.grant_of
    if setting.without == "WT":  # all that waits counts as more than MaxP
        budgets.grant_of = lambda load: granted(
            load._replace(prompts=[(0, BIG)] if load.prompts else [])
        )
    elif setting.without == "UT":  # memory counts as empty until the threshold is reached
        budgets.grant_of = lambda load: granted(
            load._replace(free=1.0 if load.free >= load.limits.threshold else load.free)
        )


def ask(engine: EngineCore, number: int, asked: Asked) -> None:
    """Send a request to the engine. Raises RuntimeError where it is refused."""
    goal = Generate(
        SamplingParams(max_new_tokens=asked.answer, temperature=0.0, ignore_eos=True),
        interval=INTERVAL,
    )
    tokens = ints([number + 10] * asked.prompt)
    refused = engine.handle(
        [Open(number, tokens.tobytes()), Advance(number, number, goal, close=True)]
    )
    if refused:
        raise RuntimeError(f"the engine refused: {refused}")


def _outcome(
    engine: EngineCore,
    pipeline: VirtualPipeline,
    lives: list[Life],
    inside: float,
    window: float,
    slo: tuple[float, float],
) -> Outcome:
    span = max(life.ended for life in lives) - lives[0].asked.arrival
    total = sum(life.asked.prompt + life.asked.answer for life in lives)
    within = [life for life in lives if life.ttft <= slo[0] and life.tpot <= slo[1]]
    busy = sum(max(min(end, window) - max(begin, 0.0), 0.0) for begin, end in pipeline.spans)
    costs = engine.planner.budgets.costs
    return Outcome(
        ttft=fmean(life.ttft for life in lives),
        tpot=fmean([life.tpot for life in lives if life.asked.answer > 1] or [0.0]),
        e2el=fmean(life.ended - life.asked.arrival for life in lives),
        inside=inside, whole=total / span, attained=len(within) / len(lives),
        bubble=1 - busy / (len(pipeline.busy) * (window - lives[0].asked.arrival)),
        retractions=engine.stats.retractions, passes=pipeline.passes,
        error=max((cost.error for cost in costs), default=0.0), lives=lives,
    )  # fmt: skip
