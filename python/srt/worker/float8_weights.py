"""Float8Weights: loads a checkpoint's float8 matrices without a conversion to floats."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from sglang.srt.layers.float8_product import Float8Matrix, Multiply, dense
from sglang.srt.layers.quantised import Float8, Quantised
from sglang.srt.layers.weight import Slot, Stored
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.numeric.host_arrays import tensor
from sglang.srt.numeric.torch_later import Tensor, torch


class Float8Weights:
    """Fills the linear layers of a model whose matrices are on the CPU (``Place.matrices``). A
    complete matrix moves to the device: as float8 if all its parts are float8, else as floats.
    Experts become floats, because the kernel that computes them reads no float8.

    ``products``: product for matrices with one scale a row (True) and with several (False).
    A matrix without a product becomes floats."""

    def __init__(
        self, model: DecoderModel, device: torch.device, products: Mapping[bool, Multiply]
    ) -> None:
        self.device, self.products = device, products
        self.count = 0  # matrices in float8
        layers = model.stored()
        shared = Counter(_key(layer.weight) for layer in layers)
        self._layers = {_key(x.weight): x for x in layers if shared[_key(x.weight)] == 1}
        self._held: defaultdict[int, list[tuple[Slot, Float8]]] = defaultdict(list)

    def covers(self, slots: Mapping[str, Slot]) -> bool:
        """Return True if ``filled`` moves every matrix that is not on the device."""
        elsewhere = [s.target for s in slots.values() if s.target.device != self.device]
        return all(_key(target) in self._layers for target in elsewhere)

    def keep(self, slot: Slot, q: Quantised | Float8) -> bool:
        """Keep a part of a layer's weight in float8. Return False if it must be loaded dense."""
        layer = self._layers.get(_key(slot.target))
        if not isinstance(q, Float8) or layer is None or (slot.adapt and not slot.rowwise):
            return False
        if layer.exact or layer.inside or layer.plain:
            return False
        rowwise = q.group >= q.values.shape[1]
        if rowwise not in self.products or any(n % 16 for n in slot.target.shape):
            return False
        if slot.adapt is not None:
            q = q.rows(slot.adapt)
        if q.values.shape != slot.target.shape:
            return False
        values, scales = (tensor(x).to(self.device) for x in (q.values, q.scales))
        there = replace(q, values=values, scales=scales)
        self._held[_key(slot.target)].append((slot, there))
        return True

    def filled(self, weight: Tensor) -> None:
        """Move a layer to the device. The tensor that ``weight`` is a view of has been loaded."""
        layer = self._layers.pop(_key(weight), None)
        if layer is None:
            return
        held = self._held.pop(_key(weight), [])
        held.sort(key=lambda part: part[0].target.data_ptr())
        rows = sum(len(q.values) for _, q in held)
        if rows == len(layer.weight) and len({q.group for _, q in held}) == 1:
            self._place(layer, [q for _, q in held])
            return
        for slot, q in held:
            slot.target.copy_(dense(q))
        layer.weight = layer.weight.to(self.device)

    def _place(self, layer: Stored, parts: list[Float8]) -> None:
        first = parts[0]
        values = torch.cat([q.values.view(torch.uint8) for q in parts]).view(first.values.dtype)
        whole = replace(first, values=values, scales=torch.cat([q.scales for q in parts]))
        multiply = self.products[first.group >= values.shape[1]]
        layer.float8 = Float8Matrix(whole, multiply)
        layer.weight = layer.weight.new_empty(0, device=self.device)
        self.count += 1


def _key(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
