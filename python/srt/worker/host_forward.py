"""Host forward: passes of a recorded model by sgl-kernel, with NumPy arrays as inputs and outputs.
The process does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sgl_kernel import native, packed, paged
from sgl_kernel.tape import Tape
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import Sample
from sglang.srt.layers.tape_writer import record
from sglang.srt.logits import host_sampler
from sglang.srt.logits.drawing import Drawing
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.numeric.host_arrays import Array
from sglang.srt.worker.inputs import Inputs
from sglang.srt.worker.kv import KVPool

# Multiply-adds that one thread computes in about the time that waking another thread takes.
LIGHT = 1 << 20


class HostForward:
    """Implements ``worker.forward.Forward`` for models that can be recorded as an op list."""

    def __init__(self, model: DecoderModel, pool: KVPool, threads: int) -> None:
        """``model``: packed. The op list keeps pointers to its matrices and to the pool."""
        self.model, self.threads, self.isa = model, threads, native.isa()
        self.parameters = packed_parameters(model)
        self.page_size, self.pools = pool.page_size, kernel_pools(pool)
        self.tape = Tape()
        record(model, self.tape, self.pools)

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Array:
        layout, embedded = inputs.layout, inputs.embedded
        given = None
        if embedded is not None:
            given = embedded.at, np.ascontiguousarray(embedded.states, dtype=np.float32)
        work = paged.Pass(
            inputs.tokens, inputs.positions, layout.starts, layout.counts,
            layout.tables, layout.pages, self.page_size, given,
        )  # fmt: skip
        groups = None
        if use := inputs.use:
            groups = [adapter.native for adapter in use.adapters], use.groups
        threads = threads_of(work.tokens, self.parameters, self.threads)
        return self.tape.run(work, np.ascontiguousarray(wanted), threads, groups)

    def logits(self, hidden: Array) -> Array:
        head = self.model.head
        assert head is not None
        assert head.packed is not None
        threads = threads_of(hidden.shape[0], self.parameters, self.threads)
        scores = packed.linear(hidden, head.packed, threads=threads)
        logits: Array = self.model.adjust(scores)
        return logits

    def draw(self, logits: Array, samples: Sequence[Sample]) -> Drawing:
        threads = self.threads if len(samples) > 1 else 1
        return host_sampler.draw(logits, samples, threads)


def kernel_pools(pool: KVPool) -> list[paged.KV]:
    """Return the pool's layers in the form that kernels take."""
    for memory in (*pool.keys, *pool.values):
        packed.ask_huge_pages(memory)
    return [
        paged.KV(keys, values, *scales)
        for keys, values, scales in zip(pool.keys, pool.values, pool.scales)
    ]


def packed_parameters(model: DecoderModel) -> int:
    """Return the number of parameters in packed matrices."""
    return sum(s.packed.n * s.packed.k for s in model.stored() if s.packed)


def threads_of(tokens: int, parameters: int, threads: int) -> int:
    """Return 1 for a pass that ends before other threads wake up, else ``threads``."""
    return 1 if tokens * parameters < LIGHT else threads
