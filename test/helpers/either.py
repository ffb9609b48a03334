"""An executor with several batches in flight and without a thread: a function of its seed."""

from __future__ import annotations

import random
from collections import deque

from sglang.srt.core.batch import Batch, RowOutput, StepResult
from sglang.srt.core.workers import NO_MASKS, Masks, Worker
from sglang.srt.engine.executor import Inline


class Either(Inline):
    """``depth`` batches in flight, each computed when it is given or when its result is requested.
    A batch given before a failure is known comes to nothing: there is nonsense in its results."""

    def __init__(self, worker: Worker, seed: int = 0, depth: int = 2) -> None:
        super().__init__(worker, depth)
        self.random = random.Random(seed)
        self.results: deque[StepResult | Exception] = deque()

    def submit(self, batch: Batch, masks: Masks = NO_MASKS) -> None:
        super().submit(batch, masks)
        assert len(self._batches) + len(self.results) <= self.depth
        if self.random.random() < 0.5:
            self._compute()

    def result(self) -> StepResult:
        if not self.results:
            self._compute()
        result = self.results.popleft()
        if isinstance(result, Exception):
            self._compute(failed=True)
            raise result
        return result

    def _compute(self, failed: bool = False) -> None:
        """Compute all batches in flight."""
        failed = failed or any(isinstance(result, Exception) for result in self.results)
        while self._batches:
            rows = self._batches[0].batch.rows
            if failed:
                del self._batches[0]
                self.results.append(StepResult(-1, [RowOutput(token=1) for _ in rows]))
                continue
            try:
                self.results.append(super().result())
            except Exception as error:
                self.results.append(error)
                failed = True
