"""RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016): what they hold."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from sglang.srt.layers.operations import HeadGains
from sglang.srt.layers.rotary import from_pairs
from sglang.srt.layers.weight import Place, Slot, Slots
from sglang.srt.numeric.host_arrays import Array


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * gain`` over the last dimension, computed in float32.

    ``above``: the checkpoint holds ``gain - above`` (Gemma's holds what the gain is more than 1);
    the gain is float32 then, whatever the other weights are.
    """

    def __init__(self, width: int, eps: float, place: Place, above: float = 0.0) -> None:
        self.shape, self.eps, self.above = (width,), eps, above
        self.weight = place.floats(width) if above else place.empty(width)

    def slots(self, name: str) -> Slots:
        if not self.above:
            return {name: Slot(self.weight, self.shape, kind="gain")}
        return {
            name: Slot(self.weight, self.shape, kind="bias", adapt=partial(_raised, by=self.above))
        }


def _raised(gain: Array, by: float) -> Array:
    found: Array = gain.astype(np.float32) + np.float32(by)
    return found


class LayerNorm:
    """``(x - mean(x)) / sqrt(var(x) + eps) * gain + bias`` over the last dimension."""

    def __init__(self, width: int, eps: float, place: Place, bias: bool = True) -> None:
        self.weight, self.shape, self.eps = place.empty(width), (width,), eps
        self.bias = place.empty(width) if bias else None

    def slots(self, name: str) -> Slots:
        """``name`` is the gain's; the bias stands beside it."""
        out = {name: Slot(self.weight, self.shape, kind="gain")}
        if self.bias is not None:
            beside = f"{name.removesuffix('weight')}bias"
            out[beside] = Slot(self.bias, self.shape, kind="bias")
        return out


class WholeRMSNorm:
    """RMSNorm over all heads of a token at once, of which a rank holds some."""

    def __init__(self, width: int, eps: float, place: Place) -> None:
        """``width``: of all heads of all ranks."""
        self.width, self.eps, self.group = width, eps, place.group
        self.weight = place.empty(place.group.share(width, "the width of a norm"))

    def slots(self, name: str) -> Slots:
        start = self.group.rank * self.weight.shape[0]
        return {name: Slot(self.weight, (self.width,), 0, start, "gain")}


class HeadsNorm:
    """LayerNorm of each head by itself, with gains of its own."""

    def __init__(self, heads: int, dim: int, eps: float, turned: int, place: Place) -> None:
        """``turned``: the number of a head's ``dim`` dimensions that turn; loading reorders
        them."""
        self.dim, self.eps, self.turned = dim, eps, turned
        self.whole, self.group = (heads, dim), place.group
        self.weight = place.empty(place.group.share(heads, "the heads of a norm"), dim)

    def slots(self, name: str) -> Slots:
        start = self.group.rank * self.weight.shape[0]
        return {name: Slot(self.weight, self.whole, 0, start, "gain", self._reorder)}

    def _reorder(self, gains: Array) -> Array:
        return from_pairs(gains.reshape(-1), self.dim, self.turned).reshape(self.whole)


HeadNorm: TypeAlias = RMSNorm | WholeRMSNorm | HeadsNorm


class HeadNorms(NamedTuple):
    """Norms of the heads of queries and keys [T, heads, head_dim] before they are rotated."""

    q: HeadNorm
    k: HeadNorm

    @property
    def gains(self) -> HeadGains | None:
        """Gains and eps where each head has an RMSNorm, as kernels that rotate compute it."""
        if isinstance(self.q, RMSNorm) and isinstance(self.k, RMSNorm):
            return self.q.weight, self.k.weight, self.q.eps
        return None
