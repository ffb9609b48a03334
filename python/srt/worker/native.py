"""Passes on a CPU by sgl-kernel, the weights packed as they are loaded.

Native     the model is recorded on a tape once; a pass is one native call
Layered    the model's own code, its products and attention native: for what no tape holds
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sgl_kernel import native, packed, paged
from sgl_kernel.tape import Tape
from torch import Tensor

from srt.attention.base import Int32Array
from srt.attention.kernel import KernelAttention
from srt.core.batch import Sample
from srt.layers.recorder import Recorder
from srt.layers.weight import Stored
from srt.models.model import Model
from srt.worker import native_draw
from srt.worker.drawing import Drawing, drawn
from srt.worker.forward import pick
from srt.worker.inputs import Inputs
from srt.worker.kv import KVPool

# How each --quantization stores matrices, and the output head.
FORMATS = {"int8": ("w8a8", "w8a8"), "int8wo": ("w8", "w8"), "int4": ("w4", "w8")}
PLAIN = {torch.float32: "f32", torch.bfloat16: "bf16"}


def unfit(dtype: torch.dtype, device: torch.device) -> str:
    """Why native kernels cannot run a model, "" where they can."""
    if device.type != "cpu":
        return f"they are for CPUs, not for {device}"
    if not native.AVAILABLE:
        return (
            f"sgl-kernel was built without its native part ({native.WHY}); install a C++ compiler "
            "and run: pip install --force-reinstall --no-deps ./sgl-kernel"
        )
    if dtype not in PLAIN:
        return f"they know float32 and bfloat16, not {dtype}"
    return ""


class Packer:
    """Packs a model's matrices while they are loaded, so that each is held twice but for a moment.

    ``quantization``: a name of ``FORMATS``, or "" for matrices as they are.
    """

    def __init__(self, model: Model, quantization: str, threads: int) -> None:
        self.threads = threads
        plain = PLAIN[model.stored()[0].weight.dtype]
        matrix, head = FORMATS.get(quantization, (plain, plain))
        self._layers: dict[int, tuple[Stored, str]] = {}
        for layer in model.stored():
            format = matrix
            if layer is model.head:
                format = head
            elif layer is model.embedding:
                format = plain
            key = layer.weight.untyped_storage().data_ptr()
            self._layers[key] = (layer, format)
        sizes = [
            packed.packed_bytes(x.weight.shape[0], x.weight.shape[1], f)
            for x, f in self._layers.values()
        ]
        self.arena = packed.Arena(sum(sizes))

    def filled(self, weight: Tensor) -> None:
        """All of the tensor that ``weight`` is a view of has been loaded."""
        found = self._layers.pop(weight.untyped_storage().data_ptr(), None)
        if found is not None:
            layer, format = found
            layer.pack(format, self.threads, self.arena)


class Layered:
    """Implements ``worker.forward.Forward`` for any model whose matrices are packed."""

    def __init__(self, model: Model, pool: KVPool, threads: int) -> None:
        """``model``: packed. Its matrices and the pool stay where they are."""
        assert model.head is not None
        assert model.head.packed is not None
        self.threads, self.page_size, self.isa = threads, pool.page_size, native.isa()
        self.parameters = sum(s.packed.n * s.packed.k for s in model.stored() if s.packed)
        self.head = model.head.packed
        for memory in (*pool.keys, *pool.values):
            packed.ask_huge_pages(memory)
        self.model = model
        self.pools = [
            paged.KV(keys, values, *scales)
            for keys, values, scales in zip(pool.keys, pool.values, pool.scales)
        ]
        self.attention = KernelAttention(self.pools, pool.page_size, threads)

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Tensor:
        self.attention.plan(inputs.layout)
        return pick(self.model.forward(inputs.tokens, inputs.positions, self.attention), wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        return packed.linear(hidden, self.head, threads=self._threads(hidden.shape[0]))

    def draw(self, logits: Tensor, samples: Sequence[Sample]) -> Drawing:
        threads = self.threads if len(samples) > 1 else 1
        return drawn(*native_draw.draw(logits, samples, threads))

    def _threads(self, tokens: int) -> int:
        """One for a pass that is over before others have woken."""
        return 1 if tokens * self.parameters < LIGHT else self.threads


class Native(Layered):
    """The same for models that are ``recordable``."""

    def __init__(self, model: Model, pool: KVPool, threads: int) -> None:
        super().__init__(model, pool, threads)
        self.tape = Tape()
        model.record(Recorder(self.tape, self.pools))

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Tensor:
        layout = inputs.layout
        work = paged.Pass(
            inputs.tokens.numpy(), layout.positions, layout.starts, layout.counts, layout.tables,
            layout.pages, self.page_size,
        )  # fmt: skip
        return self.tape.run(work, np.ascontiguousarray(wanted), self._threads(work.tokens))


# Multiply-adds that one thread does in about the time it takes to wake another.
LIGHT = 1 << 20
