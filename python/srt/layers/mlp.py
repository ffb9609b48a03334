"""The gated feed-forward layer (Shazeer, "GLU variants improve Transformer", 2020)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from srt.layers.linear import ColumnLinear, RowLinear
from srt.layers.recorder import Recorder, Source
from srt.layers.weight import Place, Slots

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class GatedMLP:
    """``down(act(gate(x)) * up(x))``; gate and up are one matrix."""

    def __init__(self, width: int, inner: int, act: str, bias: bool, place: Place) -> None:
        parts = {"gate_proj": inner, "up_proj": inner}
        self.gate_up = ColumnLinear(width, parts, bias, place, paired=True)
        self.down = RowLinear(inner, "down_proj", width, bias, place)
        self.act_name, self.act = act, ACTIVATIONS[act]

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.act(gate).mul_(up))

    def record(self, tape: Recorder, x: Source, residual: int) -> None:
        """Add the layer's outputs to the residual stream."""
        self.down.record(tape, Source(self.gate_up.record(tape, x, self.act_name)), residual)

    def slots(self, prefix: str) -> Slots:
        return self.gate_up.slots(prefix) | self.down.slots(prefix)
