"""HeldWeights: counts the bytes of a model's weights after loading."""

from __future__ import annotations

import math

import numpy as np
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.numeric.host_arrays import Weight, storage_key


class HeldWeights:
    """Sizes of a model's weights, recorded before loading. Loading packs some of the weights."""

    def __init__(self, model: DecoderModel) -> None:
        targets = [slot.target for slot in model.slots().values()]
        self._parameters = sum(math.prod(target.shape) for target in targets)
        self._sizes = {storage_key(target): _storage_bytes(target) for target in targets}
        self._layers = [(layer, storage_key(layer.weight)) for layer in model.stored()]

    def nbytes(self, parameters: int) -> int:
        """Return the bytes of the loaded model over all ranks, scaled from this rank's bytes.
        ``parameters``: number of parameters of the model in all ranks."""
        sizes, packed = dict(self._sizes), 0
        for layer, key in self._layers:
            if layer.packed is not None:
                order = layer.packed.order
                packed += layer.packed.data.nbytes + (0 if order is None else order.nbytes)
            elif layer.float8 is not None:
                packed += layer.float8.weight.values.nbytes + layer.float8.weight.scales.nbytes
            else:
                continue
            sizes.pop(key, None)
        held = sum(sizes.values()) + packed
        return int(held * parameters // max(self._parameters, 1))


def _storage_bytes(x: Weight) -> int:
    """Bytes of the memory that an array or a tensor is a view of."""
    if not isinstance(x, np.ndarray):
        return int(x.untyped_storage().nbytes())
    while isinstance(x.base, np.ndarray):
        x = x.base
    return int(x.nbytes)
