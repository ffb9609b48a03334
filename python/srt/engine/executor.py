"""Executor: the seam between planning and computing; the engine's only file that sees a worker.

    Inline      computes in the caller's thread, when its result is taken
    Threaded    computes in a thread of its own, one batch after the other, while the caller plans
                the next: native code and torch release the interpreter's lock

Batches are computed in the order they are submitted.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.disk_jobs import Disk
from sglang.srt.core.messages import AdapterInfo
from sglang.srt.core.workers import NO_MASKS, Finish, Masks, Worker
from sglang.srt.engine.info import FIRST_ADAPTER, EngineInfo


class Executor(Protocol):
    """Computes batches in the order they are given.

    ``depth``: number of batches that may be in flight, submitted and without a taken result.
        1: a batch is planned when the one before is collected. 2: one batch more is planned, whose
        rows may go on from the tokens of the one before (``Row.follows``). More: a pipeline of
        ``depth - 1`` stages. A request whose token is being sampled is not planned again, so no row
        follows another, and masks are made before ``submit`` returns.
    ``lost``: why it can compute nothing any more, "" while it can.
    """

    @property
    def depth(self) -> int: ...
    @property
    def lost(self) -> str: ...
    @property
    def disk(self) -> Disk | None:
        """The worker's (``Worker.disk``)."""
        ...

    def submit(self, batch: Batch, masks: Masks = NO_MASKS) -> None:
        """Queue a batch and return at once. ``masks``: of its samples, made while it is
        computed."""
        ...

    def result(self) -> StepResult:
        """Wait for the oldest batch in flight and return its outputs. Raises what computing it
        raised."""
        ...

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        """Load an adapter for batches submitted from now on (``Worker.load_adapter``)."""
        ...

    def unload_adapter(self, number: int) -> None:
        """Forget an adapter (``Worker.unload_adapter``)."""
        ...

    def close(self) -> None:
        """Stop computing. Returns when nothing is being computed."""
        ...


class _Submitted(NamedTuple):
    batch: Batch
    masks: Masks


class _Adapts:
    """An executor's adapters and disk are its worker's."""

    worker: Worker
    lost = ""

    @property
    def disk(self) -> Disk | None:
        return self.worker.disk

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        return self.worker.load_adapter(number, path, pinned)

    def unload_adapter(self, number: int) -> None:
        self.worker.unload_adapter(number)


class Inline(_Adapts):
    """Computes a batch when its result is taken: nothing overlaps, whatever the depth. For
    workers that use all processors, and for tests."""

    def __init__(self, worker: Worker, depth: int = 1) -> None:
        self.worker, self.depth = worker, depth
        self._batches: deque[_Submitted] = deque()

    def submit(self, batch: Batch, masks: Masks = NO_MASKS) -> None:
        self._batches.append(_Submitted(batch, masks))

    def result(self) -> StepResult:
        return self.worker.launch(*self._batches.popleft())()

    def close(self) -> None:
        self._batches.clear()


class Threaded(_Adapts):
    """Computes in a thread. Two batches may be in flight: one is computed, one waits for it.

    Attributes:
        busy, idle: seconds spent computing, and waiting for a batch since the first one came.
    """

    depth = 2

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.busy = self.idle = 0.0
        self._batches: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Finish | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._compute, name="srt-worker", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch, masks: Masks = NO_MASKS) -> None:
        self._batches.put(_Submitted(batch, masks))

    def result(self) -> StepResult:
        finish = self._results.get()
        if isinstance(finish, BaseException):
            raise finish
        return finish()

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:  # results that are not taken
                self._batches.get_nowait()
        self._batches.put(None)
        self._thread.join()

    def _compute(self) -> None:
        submitted = self._batches.get()
        ended = time.perf_counter()
        while submitted is not None:
            started = time.perf_counter()
            result: Finish | BaseException
            try:
                result = self.worker.launch(*submitted)
            except BaseException as error:  # raised again by ``result``
                result = error
            self.idle += started - ended
            ended = time.perf_counter()
            self.busy += ended - started
            self._results.put(result)
            del result
            submitted = self._batches.get()


def local_executor(config: Config, directory: Path | None = None) -> tuple[Executor, EngineInfo]:
    """A worker in this process, or several ranks, its children. Loads the model. ``directory``: of
    the ranks' sockets, one that its owner removes. Raises ValueError for a model that cannot be
    served, MemoryError for a KV cache that does not fit; of ranks OSError, RuntimeError too."""
    if config.parallel.ranks > 1:
        from sglang.srt.ranks.ranks_executor import Ranks

        ranks = Ranks(config, directory)
        return ranks, _info(config, ranks.facts, ranks.load_adapter)
    worker, info = load_worker(config)
    return Threaded(worker) if overlaps(config, info.device) else Inline(worker), info


def overlaps(config: Config, device: str) -> bool:
    """Whether planning during a pass may save time. It may not where the pass uses all processors:
    planning delays one of them, and the others wait for it."""
    if config.schedule.disable_overlap_schedule:
        return False
    return device != "cpu" or 0 < config.model.threads < len(os.sched_getaffinity(0))


def load_worker(config: Config) -> tuple[Worker, EngineInfo]:
    """Make the worker of a configuration. Raises the errors of ``local_executor``."""
    from sglang.srt.worker.model_worker import ModelWorker

    worker = ModelWorker(config)
    return worker, _info(config, worker.info, worker.load_adapter)


def _info(
    config: Config, facts: Mapping[str, Any], load: Callable[..., Mapping[str, Any]]
) -> EngineInfo:
    """The facts of a worker and those of its configuration, its first adapters loaded."""
    schedule = config.schedule
    known: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in facts.items()
    }
    return EngineInfo(
        **known,
        max_running_requests=schedule.max_running_requests,
        max_queued_requests=schedule.max_queued_requests,
        lora=config.lora.enabled,
        max_loras_per_batch=config.lora.max_loras_per_batch,
        max_loaded_loras=config.lora.max_loaded_loras,
        adapters=tuple(
            AdapterInfo(name=name, path=path, **load(number, path))
            for number, (name, path) in enumerate(config.lora.named(), FIRST_ADAPTER)
        ),
    )
