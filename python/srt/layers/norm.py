"""Weights of RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016)."""

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

    ``above``: the checkpoint holds ``gain - above`` (Gemma: ``gain - 1``). With ``above`` the gain
    is float32, whatever the dtype of the other weights.
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
        """``name``: name of the gain in the checkpoint; the bias has the same prefix."""
        out = {name: Slot(self.weight, self.shape, kind="gain")}
        if self.bias is not None:
            beside = f"{name.removesuffix('weight')}bias"
            out[beside] = Slot(self.bias, self.shape, kind="bias")
        return out


class WholeRMSNorm:
    """RMSNorm over all heads of a token together; a rank holds the gains of its heads."""

    def __init__(self, width: int, eps: float, place: Place) -> None:
        """``width``: dimensions of all heads of all ranks together."""
        self.width, self.eps, self.group = width, eps, place.group
        self.weight = place.empty(place.group.share(width, "the width of a norm"))

    def slots(self, name: str) -> Slots:
        start = self.group.rank * self.weight.shape[0]
        return {name: Slot(self.weight, (self.width,), 0, start, "gain")}


class HeadsNorm:
    """LayerNorm of each head separately, with gains per head."""

    def __init__(self, heads: int, dim: int, eps: float, turned: int, place: Place) -> None:
        """``turned``: number of rotated dimensions among a head's ``dim``; loading reorders the
        gains of these dimensions."""
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
    """Norms of the heads of queries and keys [T, heads, head_dim], applied before rotation."""

    q: HeadNorm
    k: HeadNorm

    @property
    def gains(self) -> HeadGains | None:
        """Gains and eps if both norms are RMSNorms per head, which rotation kernels support."""
        if isinstance(self.q, RMSNorm) and isinstance(self.k, RMSNorm):
            return self.q.weight, self.k.weight, self.q.eps
        return None
