"""The time inside tree code on work without any reuse, as a share of the time of a real model."""

from __future__ import annotations

import random
import time

from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Generate, Open
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Executor, local_executor
from sglang.srt.engine.info import EngineInfo

from benchmark.step_cost.measure import Clock, take


def tree_share(
    model: str, requests: int = 32, prompt: int = 256, most: int = 32
) -> tuple[float, float]:
    """Seconds inside tree code, and of the whole run, of requests that share nothing."""
    config = Config.of(model_path=model, max_running_requests=16, max_total_tokens=1 << 14)
    executor, info = local_executor(config)
    try:
        return _run(executor, info, config, requests, prompt, most)
    finally:
        executor.close()


def _run(
    executor: Executor, info: EngineInfo, config: Config, requests: int, prompt: int, most: int
) -> tuple[float, float]:
    engine, clock, r = (
        EngineCore(executor, info, config.schedule, [b"x"]),
        Clock(),
        random.Random(0),
    )
    clock.watch_tree(engine.store.tree)
    sampling = SamplingParams(max_new_tokens=most, temperature=0.0, ignore_eos=True)
    texts: dict[int, list[int]] = {}
    started = time.perf_counter()
    for number in range(requests):
        tokens = ints([number, *(r.randrange(info.vocab_size) for _ in range(prompt - 1))])
        goal = Generate(sampling)
        engine.handle([Open(number, tokens.tobytes()), Advance(number, number, goal, close=True)])
    while engine.busy:
        take(engine.step(), texts)
    seconds = time.perf_counter() - started
    assert all(len(text) == most for text in texts.values())
    assert engine.stats.cached_tokens == 0, "the work has reuse"
    return clock.seconds["tree"], seconds
