"""Executor: the seam between planning and computing; the one place that sees a worker."""

from __future__ import annotations

from typing import Protocol

from srt.config import Config
from srt.core.batch import Batch, StepResult
from srt.engine.info import EngineInfo


class Executor(Protocol):
    """Computes batches in the order they are given."""

    def run(self, batch: Batch) -> StepResult:
        """Outputs of every row. Raises where the pass as a whole failed: no row was computed."""
        ...


def local_executor(config: Config) -> tuple[Executor, EngineInfo]:
    """A worker in this process: one rank, one device. Loads the model. Raises ValueError for a
    model that cannot be served, MemoryError for a KV cache that does not fit."""
    from srt.worker.worker import Worker

    worker = Worker(config)
    schedule = config.schedule
    info = EngineInfo(
        **worker.info,
        max_running_requests=schedule.max_running_requests,
        max_queued_requests=schedule.max_queued_requests,
    )
    return worker, info
