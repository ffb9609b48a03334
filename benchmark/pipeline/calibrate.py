"""Calibration: the costs of a real model's passes on this machine, fitted and checked."""

from __future__ import annotations

import random
import time
from typing import Any

from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Generate, Open
from sglang.srt.core.workers import NO_MASKS, Masks
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline, load_worker
from sglang.srt.schedule.stage_costs import PassWork, StageCost

SIZES = (1, 2, 8, 24, 64, 160, 400)  # prompt tokens
ROUNDS = 40


class Timed(Inline):
    """Computes in the caller's thread, and keeps the milliseconds of each pass: of a processor this
    thread's own, so that other work on the machine does not count."""

    def __init__(self, worker: Any, device: str) -> None:
        super().__init__(worker)
        self._now = time.thread_time if device == "cpu" else time.perf_counter
        self.measured: list[tuple[PassWork, float]] = []

    def submit(self, batch: Batch, masks: Masks = NO_MASKS) -> None:
        self.work = PassWork.of(batch)
        super().submit(batch, masks)

    def result(self) -> StepResult:
        began = self._now()
        result = super().result()
        self.measured.append((self.work, 1e3 * (self._now() - began)))
        return result


def calibrate(model: str) -> tuple[dict[str, Any], float]:
    """Return the costs of a model as a cost file has them, and the median relative error of the
    fit on every third pass, which it has not seen."""
    config = Config.of(model_path=model, threads=1, disable_radix_cache=True)
    worker, info = load_worker(config)
    executor = Timed(worker, info.device)
    engine = EngineCore(executor, info, config.schedule, [b"."] * info.vocab_size, share=False)
    r, number = random.Random(0), 0
    longest = min(info.context_length, 4096) - 16
    for _ in range(ROUNDS):
        for _ in range(r.choice((1, 1, 4, 12))):
            number += 1
            size = min(r.choice((*SIZES, 1500)), longest)
            tokens = ints([r.randrange(5, info.vocab_size) for _ in range(size)])
            goal = Generate(SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True))
            engine.handle([Open(number, tokens.tobytes()), Advance(number, number, goal, True)])
        while engine.busy:
            engine.step()
    engine.close()
    measured = executor.measured[10:]  # the first passes warm up
    r.shuffle(measured)
    cost = StageCost()
    seen = [point for k, point in enumerate(measured) if k % 3]
    for work, ms in seen:
        cost.add(work, ms)
    errors = sorted(abs(cost.at(work) - ms) / ms for work, ms in measured[::3])
    found = {
        "about": f"{model}: {info.architecture}, {info.dtype}, one thread; "
                 f"{len(measured)} passes",
        "floor_ms": cost.floor, "base_ms": cost.base, "token_ms": cost.token,
        "context_ms": cost.context, "attention_ms": cost.attention, "hop_ms": 0.1,
    }  # fmt: skip
    return found, errors[len(errors) // 2]
