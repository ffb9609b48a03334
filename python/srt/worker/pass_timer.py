"""PassTimer: seconds of a pass and of its copies, from which the engine estimates costs."""

from __future__ import annotations

import time
from typing import Any

from sglang.srt.core.batch import StepResult
from sglang.srt.core.workers import Finish
from sglang.srt.numeric.torch_later import torch


class PassTimer:
    """Records the start of a pass, the end of its copies and its end. On a GPU, the times are
    events of the current stream."""

    def __init__(self, device: Any) -> None:
        self._cuda = device.type == "cuda"
        self._moments = [self._now()]

    def copied(self) -> None:
        """Record the end of the copies."""
        self._moments.append(self._now())

    def timed(self, finish: Finish) -> Finish:
        """Record the end of the pass. Return ``finish``, extended to set the result's seconds."""
        self._moments.append(self._now())

        def timed() -> StepResult:
            result = finish()
            start, copied, end = self._moments
            result.copy_seconds = self._between(start, copied)
            result.seconds = self._between(copied, end)
            return result

        return timed

    def _now(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, one: float | torch.cuda.Event, two: float | torch.cuda.Event) -> float:
        if isinstance(one, float) and isinstance(two, float):
            return two - one
        assert isinstance(one, torch.cuda.Event)
        assert isinstance(two, torch.cuda.Event)
        two.synchronize()
        return float(one.elapsed_time(two)) / 1e3
