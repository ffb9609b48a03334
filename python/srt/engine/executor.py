"""Executor: runs the worker for the engine, which submits batches and takes their results.

    Inline      computes a batch in the caller's thread, when ``result`` is called
    Threaded    computes in a thread of its own, one batch after the other, while the caller plans
                the next batch: native code and torch release the interpreter's lock

Batches are computed in the order they were submitted. No other file of the engine uses a worker.
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
    """Computes batches in the order they were submitted.

    ``depth``: number of batches that may be in flight: submitted, result not taken.
        1: a batch is planned after the previous one was collected. 2: a batch is planned while the
        previous one is computed; its rows may have placeholders (``Row.follows``). More: a pipeline
        of ``depth - 1`` stages. A request whose sample is in flight gets no row there, so no row
        has a placeholder, and masks are made before ``submit`` returns.
    ``lost``: the error after which the executor can compute nothing any more, "" before.
    """

    @property
    def depth(self) -> int: ...
    @property
    def lost(self) -> str: ...
    @property
    def disk(self) -> Disk | None:
        """The worker's disk storage (``Worker.disk``)."""
        ...

    def submit(self, batch: Batch, masks: Masks = NO_MASKS) -> None:
        """Queue a batch and return at once. ``masks``: masks of the batch's samples, made while
        the device computes the batch."""
        ...

    def result(self) -> StepResult:
        """Wait for the oldest batch in flight and return its outputs. Raises the error with which
        the batch failed, if any."""
        ...

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        """Load an adapter for batches submitted from now on (``Worker.load_adapter``)."""
        ...

    def unload_adapter(self, number: int) -> None:
        """Forget an adapter (``Worker.unload_adapter``)."""
        ...

    def close(self) -> None:
        """Stop computing. Return after the batch that is being computed."""
        ...


class _Submitted(NamedTuple):
    batch: Batch
    masks: Masks


class _Adapts:
    """Executor methods that call the worker: adapters and disk."""

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
    """Computes a batch when ``result`` is called: planning and computing do not overlap, whatever
    the depth. Used for workers that use all processors, and in tests."""

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
    """Computes in a thread. Two batches may be in flight: one being computed, one queued.

    Attributes:
        busy, idle: seconds that the thread computed, and waited for a batch, since the first batch.
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
            while True:  # drop batches that have not begun
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
    """Load the model here, or in one child process per rank. Return the executor and its facts.
    ``directory``: for the ranks' sockets; the caller removes it. Raises ValueError (unsupported
    model), MemoryError (the KV cache does not fit); for ranks also OSError, RuntimeError."""
    if config.parallel.ranks > 1:
        from sglang.srt.ranks.ranks_executor import Ranks

        ranks = Ranks(config, directory)
        return ranks, _info(config, ranks.facts, ranks.load_adapter)
    worker, info = load_worker(config)
    return Threaded(worker) if overlaps(config, info.device) else Inline(worker), info


def overlaps(config: Config, device: str) -> bool:
    """Return whether planning during a pass may save time. If the pass uses all processors, it may
    not: planning delays one processor, and the others wait for it."""
    if config.schedule.disable_overlap_schedule:
        return False
    return device != "cpu" or 0 < config.model.threads < len(os.sched_getaffinity(0))


def load_worker(config: Config) -> tuple[Worker, EngineInfo]:
    """Make the worker and its facts from a configuration. Raises as ``local_executor`` does."""
    from sglang.srt.worker.model_worker import ModelWorker

    worker = ModelWorker(config)
    return worker, _info(config, worker.info, worker.load_adapter)


def _info(
    config: Config, facts: Mapping[str, Any], load: Callable[..., Mapping[str, Any]]
) -> EngineInfo:
    """Load the configured adapters. Return the facts of the worker and of its configuration."""
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
