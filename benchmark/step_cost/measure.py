"""One engine over a worker without a model, and the processor time of each part of a step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

import torch
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Batch, RowOutput, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Event, Failed, Generate, Open, Tokens, Verb, encode
from sglang.srt.core.workers import NO_MASKS, Finish, Masks, Worker
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline
from sglang.srt.engine.info import EngineInfo
from sglang.srt.memory.radix import RadixTree
from sglang.srt.worker.inputs import InputReader
from sglang.srt.worker.page_tables import PageTables

VOCAB = 1 << 20
TREE = ("match", "lock", "deepen", "unlock", "continues", "exclusive", "publish", "evict", "walk")
CPU = torch.device("cpu")


def token_at(context: int, position: int) -> int:
    """Token that is sampled for a context of ``position`` tokens."""
    return (context * 7919 + position * 31) % VOCAB


class Clock:
    """Seconds of this thread's processor time by name; of calls in calls only the outer count."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: set[str] = set()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if name in self._open:
                return function(*given)
            self._open.add(name)
            started = thread_time()
            try:
                return function(*given)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + thread_time() - started
                self._open.remove(name)

        return call

    def watch_tree(self, tree: RadixTree) -> None:
        """Count the time inside tree code as "tree"."""
        for name in TREE:
            setattr(tree, name, self.timed("tree", getattr(tree, name)))


@dataclass
class Instant:
    """A worker that reads its batch, as a real one does, and samples at once."""

    tables: PageTables
    clock: Clock
    drawn: torch.Tensor | None = None
    outputs: list[RowOutput] = field(default_factory=list)
    disk = None

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        self.clock.timed("inputs", self._read)(batch)
        tokens = [token_at(row.context, row.start + len(row.tokens)) for row in batch.rows]
        self.drawn = torch.tensor(tokens, dtype=torch.int32)
        result = StepResult(batch.id, [RowOutput(token=token) for token in tokens])
        return lambda: result

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        raise ValueError("this worker takes no adapters")

    def unload_adapter(self, number: int) -> None:
        pass

    def _read(self, batch: Batch) -> None:
        InputReader(self.tables, CPU, VOCAB, 1 << 20).read(batch, self.drawn)


@dataclass(frozen=True)
class Cost:
    """Microseconds of a step by part; ``step`` is all but the inputs' share of the worker."""

    plan: float
    inputs: float
    collect: float
    events: float

    @property
    def step(self) -> float:
        return self.plan + self.inputs + self.collect + self.events


def decode_cost(
    rows: int, context: int, page_size: int, overlap: bool, steps: int = 30, rounds: int = 3
) -> Cost:
    """Cost of decode steps of ``rows`` requests of ``context`` tokens and more; of each part the
    least of ``rounds``. Raises AssertionError if a text is wrong."""
    clock = Clock()
    engine = make_engine(rows, context + steps * rounds + 8, page_size, overlap, clock)
    most = steps * rounds + 4
    open_requests(engine, rows, context, most)
    texts: dict[int, list[int]] = {}
    while engine.waiting:
        take(engine.step(), texts)
    take(engine.step(), texts)
    engine.planner.plan = clock.timed("plan", engine.planner.plan)  # type: ignore[method-assign]
    engine._collect = clock.timed("collect", engine._collect)  # type: ignore[method-assign]
    send = clock.timed("events", encode)
    parts: list[dict[str, float]] = []
    for _ in range(rounds):
        clock.seconds.clear()
        for _ in range(steps):
            events = engine.step()
            send(events)
            take(events, texts)
        parts.append(dict(clock.seconds))
    while engine.busy:
        take(engine.step(), texts)
    for number in range(rows):
        wanted = [token_at(number, context + i) for i in range(most)]
        assert texts[number] == wanted, f"the text of request {number} is not what was drawn"
    engine.store.check()
    return Cost(*(min(p[name] for p in parts) / steps * 1e6 for name in Cost.__annotations__))


def make_engine(
    rows: int,
    longest: int,
    page_size: int,
    overlap: bool,
    clock: Clock,
    worker: Worker | None = None,
) -> EngineCore:
    """An engine with room for ``rows`` requests of ``longest`` tokens."""
    pages = rows * (longest // page_size + 2)
    info = EngineInfo(
        model_path="none", architecture="none", dtype="none", device="none", vocab_size=VOCAB,
        context_length=1 << 20, capacity=pages * page_size, page_size=page_size, eos=(),
        max_running_requests=rows, max_queued_requests=rows,
    )  # fmt: skip
    schedule = ScheduleConfig(max_running_requests=rows, chunked_prefill_size=-1)
    worker = worker or Instant(PageTables(pages, page_size), clock)
    executor = Inline(worker, depth=2 if overlap else 1)
    return EngineCore(executor, info, schedule, [b"x"] * 8)


def open_requests(engine: EngineCore, rows: int, context: int, most: int, seed: int = 0) -> None:
    """Requests 0 to ``rows - 1``, none of which shares a beginning with another."""
    r = random.Random(seed)
    sampling = SamplingParams(max_new_tokens=most, temperature=0.0, ignore_eos=True)
    for number in range(rows):
        prompt = ints([number, *(r.randrange(VOCAB) for _ in range(context - 1))])
        verbs: list[Verb] = [
            Open(number, prompt.tobytes()),
            Advance(number, number, Generate(sampling)),
        ]
        assert not engine.handle(verbs)


def take(events: list[Event], texts: dict[int, list[int]]) -> None:
    """Add the tokens of ``events`` to the texts of their requests."""
    for event in events:
        assert not isinstance(event, Failed), event
        if isinstance(event, Tokens):
            texts.setdefault(event.request, []).extend(event.tokens)
