"""Passes on a CPU by sgl-kernel together with torch. Weights are packed while they are loaded.

Native     the model is recorded as an op list once; a pass is one native call
Layered    the model's own code with native products and attention, for models without an op list
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sgl_kernel import native, packed, paged, rows
from sgl_kernel.tape import Tape
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.attention.kernel_attention import KernelAttention
from sglang.srt.core.batch import Sample
from sglang.srt.layers.tape_writer import record
from sglang.srt.logits.drawing import Drawing, drawn
from sglang.srt.logits.host_sampler import draw_records, note_errors
from sglang.srt.logits.sampler import adjust
from sglang.srt.logits.torch_results import pick
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.numeric.torch_later import Tensor, torch
from sglang.srt.worker.forward import compute
from sglang.srt.worker.host_forward import kernel_pools, packed_parameters, threads_of
from sglang.srt.worker.inputs import Inputs
from sglang.srt.worker.kv import KVPool


class Layered:
    """Implements ``worker.forward.Forward`` for any model whose matrices are packed."""

    def __init__(self, model: DecoderModel, pool: KVPool, threads: int) -> None:
        """``model``: packed. Kernels keep pointers to its matrices and to the pool."""
        self.threads, self.page_size, self.isa = threads, pool.page_size, native.isa()
        self.parameters = packed_parameters(model)
        self.model, self.pools = model, kernel_pools(pool)
        self.attention = KernelAttention(self.pools, pool.page_size, threads)

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Tensor:
        self.attention.plan(inputs.layout)
        return pick(compute(self.model, inputs, self.attention), wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        head, threads = self.model.head, self._threads(hidden.shape[0])
        assert head is not None
        assert head.packed is not None
        scores = packed.linear(hidden, head.packed, threads=threads)
        logits: Tensor = self.model.adjust(head.gathered(scores))
        return logits

    def draw(self, logits: Tensor, samples: Sequence[Sample]) -> Drawing:
        threads = self.threads if len(samples) > 1 else 1
        tokens, errors = draw_rows(logits, samples, threads)
        return drawn(tokens, errors)

    def _threads(self, tokens: int) -> int:
        """Return 1 for a pass that ends before other threads wake up, else all threads."""
        return threads_of(tokens, self.parameters, self.threads)


class Native(Layered):
    """Implements ``worker.forward.Forward`` for models that can be recorded as an op list."""

    def __init__(self, model: DecoderModel, pool: KVPool, threads: int) -> None:
        super().__init__(model, pool, threads)
        self.tape = Tape()
        record(model, self.tape, self.pools)

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Tensor:
        layout, embedded = inputs.layout, inputs.embedded
        work = paged.Pass(
            inputs.tokens.numpy(), inputs.positions.numpy(), layout.starts, layout.counts,
            layout.tables, layout.pages, self.page_size,
            embedded and (embedded.at, embedded.states.float().contiguous()),
        )  # fmt: skip
        groups = None
        if use := inputs.use:
            groups = [adapter.native for adapter in use.adapters], use.groups
        threads = self._threads(work.tokens)
        return torch.from_numpy(self.tape.run(work, np.ascontiguousarray(wanted), threads, groups))


def draw_rows(logits: Tensor, samples: Sequence[Sample], threads: int) -> tuple[Tensor, list[str]]:
    """Sample as ``logits.sampler.draw`` does, by one kernel over float32 logits [N, vocab] on the
    CPU. Torch applies penalties, bias and forbidden ids first, which few requests have. Return
    token ids [N] and an error per row, "" for none."""
    errors = [""] * len(samples)
    adjusted = adjust(logits, samples).contiguous()
    draws, kept = draw_records(samples, logits.shape[1], errors)
    tokens = rows.draw(adjusted, draws, threads)
    del kept
    note_errors(tokens.tolist(), errors)
    return tokens.clamp_(min=0), errors
