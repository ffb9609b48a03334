"""Executor: the seam between planning and computing; the one place that sees a worker.

    Inline      computes in the caller's thread, when its result is asked for
    Threaded    computes in a thread of its own, one batch after the other, while the caller plans
                the next: native code and torch let go of the interpreter's lock

Either way a batch is computed when all before it are.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.messages import AdapterInfo
from sglang.srt.engine.info import FIRST_ADAPTER, EngineInfo

Finish: TypeAlias = Callable[[], StepResult]


class Runs(Protocol):
    """What computes a batch, such as ``worker.worker.Worker``."""

    def run(self, batch: Batch) -> StepResult:
        """Outputs of every row. Raises where the pass as a whole failed: no row was computed."""
        ...


class Executor(Protocol):
    """Computes batches in the order they are given.

    ``depth``: how many batches may be under way, given and their results not taken.
    """

    @property
    def depth(self) -> int: ...
    def submit(self, batch: Batch) -> None:
        """Returns at once."""
        ...

    def result(self) -> StepResult:
        """Of the oldest batch under way; waits for it. Raises what computing it raised."""
        ...

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        """Rows of batches given from now on may have it; facts about it. May be called beside
        everything else, from another thread. Raises ValueError, MemoryError."""
        ...

    def unload_adapter(self, number: int) -> None:
        """No row of a batch that is asked for has it any more."""
        ...

    def close(self) -> None:
        """Compute nothing more. Returns when nothing is being computed."""
        ...


class _Adapts:
    """Adapters are the worker's."""

    worker: Runs

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        load = getattr(self.worker, "load_adapter", None)
        if load is None:
            raise ValueError("this worker takes no adapters")
        found: dict[str, Any] = load(number, path, pinned)
        return found

    def unload_adapter(self, number: int) -> None:
        self.worker.unload_adapter(number)  # type: ignore[attr-defined]


class Inline(_Adapts):
    """Nothing overlaps, whatever the depth: for workers without a model, and for tests."""

    def __init__(self, worker: Runs, depth: int = 1) -> None:
        self.worker, self.depth = worker, depth
        self._batches: deque[Batch] = deque()

    def submit(self, batch: Batch) -> None:
        self._batches.append(batch)

    def result(self) -> StepResult:
        return self.worker.run(self._batches.popleft())

    def close(self) -> None:
        self._batches.clear()


class Threaded(_Adapts):
    """At most two batches under way: one that is computed, one that waits for it.

    Attributes:
        busy, idle: seconds spent computing, and waiting for a batch since the first one came.
    """

    depth = 2

    def __init__(self, worker: Runs) -> None:
        self.worker = worker
        self.busy = self.idle = 0.0
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Finish | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._compute, name="srt-worker", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._batches.put(batch)

    def result(self) -> StepResult:
        finish = self._results.get()
        if isinstance(finish, BaseException):
            raise finish
        return finish()

    def _launch(self, batch: Batch) -> Finish:
        """Queue a batch on its device, where the worker can: the next one may then be queued while
        it is computed, and whoever asks for its result waits for it. Else compute it."""
        launch = getattr(self.worker, "launch", None)
        if launch is not None:
            finish: Finish = launch(batch)
            return finish
        result = self.worker.run(batch)
        return lambda: result

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:  # what waits would be computed for nobody
                self._batches.get_nowait()
        self._batches.put(None)
        self._thread.join()

    def _compute(self) -> None:
        batch = self._batches.get()
        ended = time.perf_counter()
        while batch is not None:
            started = time.perf_counter()
            result: Finish | BaseException
            try:
                result = self._launch(batch)
            except BaseException as error:  # it is raised again where the result is asked for
                result = error
            self.idle += started - ended
            ended = time.perf_counter()
            self.busy += ended - started
            self._results.put(result)
            del result
            batch = self._batches.get()


def local_executor(config: Config) -> tuple[Executor, EngineInfo]:
    """A worker in this process: one rank, one device. Loads the model. Raises ValueError for a
    model that cannot be served, MemoryError for a KV cache that does not fit."""
    worker, info = load_worker(config)
    return Threaded(worker) if overlaps(config, info.device) else Inline(worker), info


def overlaps(config: Config, device: str) -> bool:
    """Whether planning beside a pass may save time. It may not where the pass has all processors:
    for what planning takes of one, all the others wait."""
    if config.schedule.disable_overlap_schedule:
        return False
    return device != "cpu" or 0 < config.model.threads < len(os.sched_getaffinity(0))


def load_worker(config: Config) -> tuple[Runs, EngineInfo]:
    """The worker itself. Raises as ``local_executor``."""
    from sglang.srt.worker.worker import Worker

    worker = Worker(config)
    schedule = config.schedule
    info = EngineInfo(
        **worker.info,
        max_running_requests=schedule.max_running_requests,
        max_queued_requests=schedule.max_queued_requests,
        lora=config.lora.enabled,
        max_loras_per_batch=config.lora.max_loras_per_batch,
        max_loaded_loras=config.lora.max_loaded_loras,
        adapters=tuple(
            AdapterInfo(name=name, path=path, **worker.load_adapter(number, path))
            for number, (name, path) in enumerate(config.lora.named(), FIRST_ADAPTER)
        ),
    )
    return worker, info
