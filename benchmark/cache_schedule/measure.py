"""One batch of prompts through the real scheduler and memory, with no model: tokens are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Batch, RowOutput, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Distribution, Done, Event, Generate, Goal, Open
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline
from sglang.srt.engine.info import EngineInfo

from benchmark.cache_schedule.workloads import Prompts, lower_bound

VOCAB = 1 << 24


class Counter:
    """A worker that samples token 0, which no prompt contains."""

    disk = None

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        result = StepResult(batch.id, [RowOutput(token=0) for _ in batch.rows])
        return lambda: result

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        raise ValueError("this worker takes no adapters")

    def unload_adapter(self, number: int) -> None:
        pass


@dataclass(frozen=True)
class Result:
    """Counts of one run.

    Attributes:
        computed: prompt tokens that went through a pass, those of retracted requests again.
        bound: tokens of the union tree, the least possible.
        prompts: tokens of all prompts.
    """

    computed: int
    bound: int
    prompts: int
    passes: int
    retractions: int

    @property
    def excess(self) -> float:
        """Computed tokens over the least possible."""
        return self.computed / self.bound

    @property
    def hit_rate(self) -> float:
        return 1 - self.computed / self.prompts

    @property
    def best_hit_rate(self) -> float:
        return 1 - self.bound / self.prompts


def measure(
    prompts: Prompts,
    policy: str,
    *,
    capacity: int,
    draw: int = 8,
    running: int = 32,
    chunk: int = 512,
    overtakes: int = 1 << 30,
) -> Result:
    """All prompts at once, then ``draw`` tokens each (0: only the distribution of the next one).

    Args:
        capacity: KV tokens. running: requests at once. chunk: prompt tokens a pass.
        overtakes: the starvation bound, by default none.

    Raises RuntimeError where a request fails.
    """
    schedule = ScheduleConfig(
        schedule_policy=policy, max_running_requests=running, chunked_prefill_size=chunk,
        max_queued_requests=len(prompts) + 1, max_overtakes=overtakes,
    )  # fmt: skip
    info = EngineInfo(
        model_path="", architecture="", dtype="", device="", vocab_size=VOCAB,
        context_length=1 << 20, capacity=capacity, page_size=1, eos=(),
        max_running_requests=running, max_queued_requests=len(prompts) + 1,
    )  # fmt: skip
    engine = EngineCore(Inline(Counter()), info, schedule, [b"."])
    goal: Goal = Distribution(top=1)
    if draw:
        goal = Generate(SamplingParams(max_new_tokens=draw, temperature=0.0, ignore_eos=True))
    events: list[Event] = []
    for number, prompt in enumerate(prompts):
        events += engine.handle(
            [Open(number, ints(prompt).tobytes()), Advance(number, number, goal, close=True)]
        )
    while engine.busy:
        events += engine.step()
    engine.store.check()
    done = [event for event in events if isinstance(event, Done)]
    if len(done) != len(prompts):
        raise RuntimeError(f"{len(prompts) - len(done)} requests failed: {events[-1]}")
    decoded = len(prompts) * max(draw - 1, 0)  # the last sampled token is not computed
    stats = engine.stats
    return Result(
        stats.computed_tokens - decoded,
        lower_bound(prompts),
        sum(map(len, prompts)),
        stats.passes,
        stats.retractions,
    )


def longest(prompts: Sequence[Sequence[int]]) -> int:
    return max(map(len, prompts))
