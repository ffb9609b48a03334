"""RMSNorm (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from srt.layers.recorder import Source
from srt.layers.weight import Place, Slot, Slots


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * gain`` over the last dimension, computed in float32."""

    def __init__(self, width: int, eps: float, place: Place) -> None:
        self.weight, self.shape, self.eps = place.empty(width), (width,), eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.shape, self.weight.to(x.dtype), self.eps)

    def record(self, x: int) -> Source:
        """Buffer ``x``, to be normed by the product that reads it."""
        return Source(x, self.weight, self.eps)

    def slots(self, name: str) -> Slots:
        return {name: Slot(self.weight, self.shape, kind="gain")}
