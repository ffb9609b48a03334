"""Packer: converts a model's matrices to the layouts of native products during loading."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sgl_kernel import native, packed
from sgl_kernel.arrays import dtype_name
from sglang.srt.layers.quantised import Float8, Quantised, joined, native_form
from sglang.srt.layers.weight import Slot, Stored
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.numeric.host_arrays import Weight, address, storage_key

# Packed formats by --quantization: of the matrices, and of the output head.
FORMATS = {"int8": ("w8a8", "w8a8"), "int8wo": ("w8", "w8"), "int4": ("w4", "w8")}
PLAIN = {"float32": "f32", "bfloat16": "bf16"}


def unfit(device: Any) -> str:
    """Return the reason why native kernels cannot run a model, "" if they can."""
    if device.type != "cpu":
        return f"they are for CPUs, not for {device}"
    if not native.AVAILABLE:
        return (
            f"sgl-kernel was built without its native part ({native.WHY}); install a C++ compiler "
            "and run: pip install --force-reinstall --no-deps ./sgl-kernel"
        )
    return ""


class Packer:
    """Packs each matrix as soon as it is loaded, so that few matrices are in memory twice.

    ``quantization``: a name of ``FORMATS``; any other name packs matrices in the model's dtype.
    ``bits``: bits of the checkpoint's quantised weights, 0 for floats.
    """

    def __init__(self, model: DecoderModel, quantization: str, threads: int, bits: int = 0) -> None:
        self.threads = threads
        self._held: defaultdict[int, list[tuple[Slot, Quantised]]] = defaultdict(list)
        plain = PLAIN[dtype_name(model.stored()[0].weight)]
        matrix, head = FORMATS.get(quantization, (plain, plain))
        self._layers: defaultdict[int, list[tuple[Stored, str]]] = defaultdict(list)
        for layer in model.stored():
            format = "f32" if layer.exact else plain if layer.plain else matrix
            if layer is model.head:
                format = head
            elif layer is model.embedding:
                format = plain
            key = storage_key(layer.weight)
            self._layers[key].append((layer, format))
        # Quantised matrices need less memory; the head and the embedding are seldom quantised.
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
        """Keep a quantised part of a layer's weight until all parts are loaded. Return False if the
        part must be loaded dense."""
        if isinstance(q, Float8):
            return False
        key = storage_key(slot.target)
        if len(self._layers.get(key, ())) != 1 or (slot.adapt is not None and not slot.rowwise):
            return False
        if slot.adapt is not None:
            q = q.rows(slot.adapt)
        if q.values.shape != tuple(slot.target.shape):
            return False
        self._held[key].append((slot, q))
        return True

    def _pack_integers(self, layer: Stored, held: list[tuple[Slot, Quantised]]) -> bool:
        """Pack a layer's quantised parts. Return False, with the parts dense in its weight, if the
        kernels do not support them. Experts and adapters support no order of inputs."""
        held.sort(key=lambda part: address(part[0].target))
        rows = sum(len(q.values) for _, q in held)
        whole = joined([q for _, q in held]) if rows == len(layer.weight) else None
        form = None if whole is None else native_form(whole)
        bound = layer.inside or layer.site >= 0
        if (
            whole is None or form is None or layer.exact or layer.plain
            or (bound and whole.order is not None)
        ):  # fmt: skip
            for slot, q in held:
                slot.put(q.dense())
            return False
        layer.pack_integers(form, whole, self.threads, self.arena)
        return True

    def filled(self, weight: Weight) -> None:
        """Pack a layer's weight. The tensor that ``weight`` is a view of has been loaded."""
        key = storage_key(weight)
        held = self._held.pop(key, None)
        if held is not None and self._pack_integers(self._layers[key][0][0], held):
            del self._layers[key]
            return
        for layer, format in self._layers.pop(key, ()):
            layer.pack(format, self.threads, self.arena)
