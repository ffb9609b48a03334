"""Machines in virtual time whose passes take longer the more KV they read.

A pass of q tokens whose rows read c tokens of KV takes ``max(base, token q) + context c`` ms: the
weights are read, or the tokens computed, whichever takes longer; then KV is read. With the kernel
that reads a shared prefix once, c counts each page of the pass once, else once a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sglang.srt.core.batch import Batch
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.memory.store import Store

from benchmark.interception.virtual_engine import Arm, Machine, VirtualEngine, VirtualWorker

PAGE = 16


@dataclass(frozen=True)
class ReadingMachine(Machine):
    """A machine that also reads KV. ``context_ms``: milliseconds a token of KV read."""

    context_ms: float = 0.0

    def share_within(self, ms: float) -> float:
        """Part of the memory that passes of ``ms`` milliseconds can read."""
        return min((ms - self.base_ms) / self.context_ms / self.capacity, 1.0)


# LLaMA 7B on an A6000: 13.5 GB of weights at 0.77 TB/s, 0.52 MB of KV a token, half of 155 Tflop/s.
A6000 = ReadingMachine(
    base_ms=18.0, token_ms=0.18, capacity=58_000, chunk=512, context_ms=0.001, host=0
)
# LLaMA 13B on an A100 of 80 GB: 26 GB of weights at 1.6 TB/s, 0.82 MB of KV a token.
A100 = ReadingMachine(
    base_ms=17.0, token_ms=0.16, capacity=58_000, chunk=512, context_ms=0.0008, host=0
)
# The paper's engine: 40 ms a pass with 6,144 tokens of KV (its Fig. 10).
PAPER_CONTEXT_MS = 0.0036


def as_in_paper(machine: ReadingMachine) -> ReadingMachine:
    """The machine with the attention of the paper's engine."""
    return replace(machine, context_ms=PAPER_CONTEXT_MS)


class ReadingWorker(VirtualWorker):
    """Adds the time of reading KV.

    Args:
        once: whether pages that several rows share are read once.

    Attributes:
        store: of the engine.
        read: tokens of KV read so far.
    """

    store: Store

    def __init__(self, machine: ReadingMachine, once: bool) -> None:
        super().__init__(machine, PAGE)
        self._once, self._context_ms, self.read = once, machine.context_ms, 0

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        result = super().launch(batch, masks)()
        machine, read = self.machine, self._reads(batch)
        self.read += read
        dense = max(machine.base_ms, machine.token_ms * batch.num_tokens)
        forward = dense + self._context_ms * read if batch.num_tokens else 0.0
        self.forward_ms += forward - self.ms
        self.ms = forward
        result.seconds = forward / 1e3
        return lambda: result

    def _reads(self, batch: Batch) -> int:
        """Tokens of KV that the pass reads."""
        contexts = {row.context for row in batch.rows}
        tables = [
            np.frombuffer(context.pages, dtype=np.int32)
            for number in contexts
            if (context := self.store.contexts.get(number)) is not None and len(context.pages)
        ]
        if not tables:
            return 0
        if not self._once:
            return PAGE * sum(map(len, tables))
        return PAGE * len(np.unique(np.concatenate(tables)))


class ReadingEngine(VirtualEngine):
    """An engine on such a machine."""

    def __init__(self, arm: Arm, machine: ReadingMachine, once: bool = True, **more: Any) -> None:
        worker = ReadingWorker(machine, once)
        super().__init__(arm, machine, PAGE, worker, **more)
        worker.store = self.core.store
