"""The gated feed-forward layer (Shazeer, "GLU variants improve Transformer", 2020)."""

from __future__ import annotations

from torch import Tensor

from srt.layers.linear import ColumnLinear, RowLinear
from srt.layers.recorder import Recorder, Source
from srt.layers.weight import Place, Slots, Stored


class GatedMLP:
    """``down(act(gate(x)) * up(x))``; gate and up are one matrix."""

    def __init__(self, width: int, inner: int, act: str, bias: bool, place: Place) -> None:
        parts = {"gate_proj": inner, "up_proj": inner}
        self.gate_up = ColumnLinear(width, parts, bias, place, paired=True)
        self.down = RowLinear(inner, "down_proj", width, bias, place)
        self.act = act

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.gate_up.gated(x, self.act))

    def record(self, tape: Recorder, x: Source, residual: int) -> None:
        """Add the layer's outputs to the residual stream."""
        self.down.record(tape, Source(self.gate_up.record(tape, x, self.act)), residual)

    def stored(self) -> list[Stored]:
        return [self.gate_up, self.down]

    def slots(self, prefix: str) -> Slots:
        return self.gate_up.slots(prefix) | self.down.slots(prefix)
