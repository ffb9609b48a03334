"""RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016)."""

from __future__ import annotations

from functools import partial

import numpy as np
from sglang.srt.layers.residual import Residual
from sglang.srt.layers.tape_recorder import ProductInput, TapeRecorder
from sglang.srt.layers.weight import Place, Slot, Slots
from sglang.srt.numeric.host_arrays import Array
from sglang.srt.numeric.torch_later import F, Tensor, torch


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * gain`` over the last dimension, computed in float32.

    ``above``: the checkpoint holds ``gain - above`` (Gemma's holds what the gain is more than 1);
    the gain is float32 then, whatever the other weights are.
    """

    def __init__(self, width: int, eps: float, place: Place, above: float = 0.0) -> None:
        self.shape, self.eps, self.above = (width,), eps, above
        self.weight = place.floats(width) if above else place.empty(width)
        self.operations = place.operations

    def __call__(self, x: Tensor) -> Tensor:
        return self.operations.norm(x, self.weight, self.eps)

    def join(self, stream: Residual) -> tuple[Tensor, Tensor]:
        """The stream's hidden states, and their norm."""
        if stream.pending is None:
            return stream.x, self(stream.x)
        inner = None
        if stream.norm is not None:
            assert stream.norm.eps == self.eps, "the kernel has one"
            inner = stream.norm.weight
        return self.operations.add_norm(stream.x, stream.pending, self.weight, self.eps, inner)

    def record(self, tape: TapeRecorder, x: int) -> ProductInput:
        """Buffer ``x``, to be normed by the product that reads it."""
        return ProductInput(x, self.weight, self.eps)

    def alone(self, tape: TapeRecorder, x: int) -> int:
        """A buffer with ``x`` normed, until the next norm."""
        return tape.norm(x, self.weight, self.eps)

    def slots(self, name: str) -> Slots:
        if not self.above:
            return {name: Slot(self.weight, self.shape, kind="gain")}
        return {
            name: Slot(self.weight, self.shape, kind="bias", adapt=partial(_raised, by=self.above))
        }


class WholeRMSNorm:
    """RMSNorm over all heads of a token at once, of which a rank holds some."""

    def __init__(self, width: int, eps: float, place: Place) -> None:
        """``width``: of all heads of all ranks."""
        self.width, self.eps, self.group = width, eps, place.group
        self.weight = place.empty(place.group.share(width, "the width of a norm"))

    def __call__(self, x: Tensor) -> Tensor:
        """[T, heads, head_dim] -> the same."""
        flat = x.flatten(1)
        if self.group.size == 1:
            weight = self.weight.to(x.dtype)
            return F.rms_norm(flat, (self.width,), weight, self.eps).view_as(x)
        wide = flat.float()
        squares = self.group.all_reduce(wide.square().sum(-1, keepdim=True))
        wide = wide * torch.rsqrt(squares / self.width + self.eps) * self.weight.float()
        found: Tensor = wide.to(x.dtype).view_as(x)
        return found

    def slots(self, name: str) -> Slots:
        start = self.group.rank * self.weight.shape[0]
        return {name: Slot(self.weight, (self.width,), 0, start, "gain")}


def _raised(gain: Array, by: float) -> Array:
    found: Array = gain.astype(np.float32) + np.float32(by)
    return found


class LayerNorm:
    """``(x - mean(x)) / sqrt(var(x) + eps) * gain + bias`` over the last dimension."""

    def __init__(self, width: int, eps: float, place: Place, bias: bool = True) -> None:
        self.weight, self.shape, self.eps = place.empty(width), (width,), eps
        self.bias = place.empty(width) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.shape, self.weight.to(x.dtype), bias, self.eps)

    def join(self, stream: Residual) -> tuple[Tensor, Tensor]:
        """The stream's hidden states, and their norm."""
        x = stream.sum
        return x, self(x)

    def alone(self, tape: TapeRecorder, x: int) -> int:
        """A buffer with ``x`` normed, until the next norm."""
        return tape.norm(x, self.weight, self.eps, self.bias, centred=True)

    def record(self, tape: TapeRecorder, x: int) -> ProductInput:
        """Buffer ``x`` normed, as the input of a product."""
        return ProductInput(self.alone(tape, x))

    def slots(self, name: str) -> Slots:
        """``name`` is the gain's; the bias stands beside it."""
        out = {name: Slot(self.weight, self.shape, kind="gain")}
        if self.bias is not None:
            beside = f"{name.removesuffix('weight')}bias"
            out[beside] = Slot(self.bias, self.shape, kind="bias")
        return out
