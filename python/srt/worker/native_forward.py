"""Passes on a CPU by sgl-kernel, the weights packed as they are loaded.

Native     the model is recorded on a tape once; a pass is one native call
Layered    the model's own code, its products and attention native: for what no tape holds
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sgl_kernel import native, packed, paged, rows
from sgl_kernel.tape import Tape
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.attention.kernel_attention import KernelAttention
from sglang.srt.core.batch import NONE_ALLOWED, Sample
from sglang.srt.layers.quantised import Float8, Quantised, joined, native_form
from sglang.srt.layers.tape_recorder import TapeRecorder
from sglang.srt.layers.weight import Slot, Stored
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.worker.forward import compute, pick
from sglang.srt.worker.inputs import Inputs
from sglang.srt.worker.kv import KVPool
from sglang.srt.worker.sampler import NOT_FINITE, Drawing, adjust, drawn, mask_bytes, sized
from torch import Tensor

# Formats in which each --quantization stores matrices, and the output head.
FORMATS = {"int8": ("w8a8", "w8a8"), "int8wo": ("w8", "w8"), "int4": ("w4", "w8")}
PLAIN = {torch.float32: "f32", torch.bfloat16: "bf16"}
# Multiply-adds that one thread does in about the time it takes to wake another.
LIGHT = 1 << 20


def unfit(device: torch.device) -> str:
    """Reason that native kernels cannot run a model, "" where they can."""
    if device.type != "cpu":
        return f"they are for CPUs, not for {device}"
    if not native.AVAILABLE:
        return (
            f"sgl-kernel was built without its native part ({native.WHY}); install a C++ compiler "
            "and run: pip install --force-reinstall --no-deps ./sgl-kernel"
        )
    return ""


class Packer:
    """Packs a model's matrices while they are loaded, so that each is held twice but for a moment.

    ``quantization``: a name of ``FORMATS``, or "" for matrices as they are. ``bits``: of the
    checkpoint's weights, 0 where they are floats.
    """

    def __init__(self, model: DecoderModel, quantization: str, threads: int, bits: int = 0) -> None:
        self.threads = threads
        self._held: defaultdict[int, list[tuple[Slot, Quantised]]] = defaultdict(list)
        plain = PLAIN[model.stored()[0].weight.dtype]
        matrix, head = FORMATS.get(quantization, (plain, plain))
        self._layers: defaultdict[int, list[tuple[Stored, str]]] = defaultdict(list)
        for layer in model.stored():
            format = "f32" if layer.exact else plain if layer.plain else matrix
            if layer is model.head:
                format = head
            elif layer is model.embedding:
                format = plain
            key = layer.weight.untyped_storage().data_ptr()
            self._layers[key].append((layer, format))
        # Quantised matrices take less; the head and the embedding seldom do.
        sizes = [
            packed.packed_bytes(
                x.weight.shape[0], x.weight.shape[1],
                f"w{bits}z" if bits and x not in (model.head, model.embedding) else f,
            )
            for layers in self._layers.values()
            for x, f in layers
        ]  # fmt: skip
        self.arena = packed.Arena(sum(sizes))

    def keep(self, slot: Slot, q: Quantised | Float8) -> bool:
        """Hold a part of a layer's weight until all of it is there; False: only its dense form will
        do."""
        if isinstance(q, Float8):
            return False
        key = slot.target.untyped_storage().data_ptr()
        if len(self._layers.get(key, ())) != 1 or (slot.adapt is not None and not slot.rowwise):
            return False
        if slot.adapt is not None:
            q = q.rows(slot.adapt)
        if q.values.shape != slot.target.shape:
            return False
        self._held[key].append((slot, q))
        return True

    def _pack_integers(self, layer: Stored, held: list[tuple[Slot, Quantised]]) -> bool:
        """Whether all of the layer is quantised in one way that the kernels know; else what was
        held is in its weight. An order of inputs is not known inside experts and to adapters."""
        held.sort(key=lambda part: part[0].target.data_ptr())
        rows = sum(len(q.values) for _, q in held)
        whole = joined([q for _, q in held]) if rows == len(layer.weight) else None
        form = None if whole is None else native_form(whole)
        bound = layer.inside or layer.site >= 0
        if (
            whole is None or form is None or layer.exact or layer.plain
            or (bound and whole.order is not None)
        ):  # fmt: skip
            for slot, q in held:
                slot.target.copy_(q.dense())
            return False
        layer.pack_integers(form, whole, self.threads, self.arena)
        return True

    def filled(self, weight: Tensor) -> None:
        """All of the tensor that ``weight`` is a view of has been loaded."""
        key = weight.untyped_storage().data_ptr()
        held = self._held.pop(key, None)
        if held is not None and self._pack_integers(self._layers[key][0][0], held):
            del self._layers[key]
            return
        for layer, format in self._layers.pop(key, ()):
            layer.pack(format, self.threads, self.arena)


class Layered:
    """Implements ``worker.forward.Forward`` for any model whose matrices are packed."""

    def __init__(self, model: DecoderModel, pool: KVPool, threads: int) -> None:
        """``model``: packed. Its matrices and the pool stay where they are."""
        self.threads, self.page_size, self.isa = threads, pool.page_size, native.isa()
        self.parameters = sum(s.packed.n * s.packed.k for s in model.stored() if s.packed)
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
        return pick(compute(self.model, inputs, self.attention), wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        head, threads = self.model.head, self._threads(hidden.shape[0])
        assert head is not None
        assert head.packed is not None
        scores = packed.linear(hidden, head.packed, threads=threads)
        return self.model.adjust(head.gathered(scores))

    def draw(self, logits: Tensor, samples: Sequence[Sample]) -> Drawing:
        threads = self.threads if len(samples) > 1 else 1
        return drawn(*draw_rows(logits, samples, threads))

    def _threads(self, tokens: int) -> int:
        """One for a pass that is over before others have woken."""
        return 1 if tokens * self.parameters < LIGHT else self.threads


class Native(Layered):
    """The same for models that are ``recordable``."""

    def __init__(self, model: DecoderModel, pool: KVPool, threads: int) -> None:
        super().__init__(model, pool, threads)
        self.tape = Tape()
        model.record(TapeRecorder(self.tape, self.pools))

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
        return self.tape.run(work, np.ascontiguousarray(wanted), threads, groups)


def draw_rows(logits: Tensor, samples: Sequence[Sample], threads: int) -> tuple[Tensor, list[str]]:
    """Sample as ``worker.sampler.draw`` in one pass over float32 logits on the CPU.

    Penalties, bias and forbidden ids, which few requests have, stay with torch.
    """
    errors = [""] * len(samples)
    adjusted = adjust(logits, samples).contiguous()
    params = [s.params for s in samples]
    if all(p.greedy for p in params):
        draws = np.zeros(len(samples), rows.DRAW)  # temperature 0: nothing else counts
    else:
        draws = _draw_records(samples, logits.shape[1])
    kept = []  # the masks, while their addresses are in use
    size = mask_bytes(logits.shape[1])
    for i, sample in enumerate(samples):
        if sample.mask is not None:
            mask, errors[i] = sized(sample.mask, size)
            words = np.frombuffer(mask, dtype=np.uint32)
            kept.append(words)
            draws["mask"][i] = words.__array_interface__["data"][0]
    tokens = rows.draw(adjusted, draws, threads)
    if int(tokens.min()) < 0:
        for i, token in enumerate(tokens.tolist()):
            if token < 0 and not errors[i]:
                errors[i] = NOT_FINITE if token == rows.NOT_FINITE else NONE_ALLOWED
        tokens.clamp_(min=0)
    return tokens.long(), errors


def _draw_records(samples: Sequence[Sample], vocab: int) -> np.ndarray[Any, Any]:
    params = [s.params for s in samples]
    return rows.draws(
        [0.0 if p.greedy else p.temperature for p in params],
        [min(p.top_k, vocab) for p in params],  # top_k may exceed an int32
        [p.top_p for p in params],
        [p.min_p for p in params],
        [s.uniform for s in samples],
    )
