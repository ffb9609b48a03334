"""Feed-forward layers: the gated one (Shazeer, "GLU variants improve Transformer", 2020) and the
plain one of the first transformer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from sglang.srt.layers.linear import ColumnLinear, Fused, RowLinear
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.pass_writer import PassWriter, Value, ValueWriter
from sglang.srt.layers.weight import LayerWeights, Place, Slots, Stored


class FeedForward(LayerWeights, Protocol):
    """The part of a block that computes each token by itself."""

    def write(self, w: PassWriter, x: Value) -> None:
        """Add the layer's outputs for x [T, width] to the stream."""


class MLP:
    """Two products; ``inner`` says the first and what is between them."""

    first: ColumnLinear
    down: RowLinear

    @abstractmethod
    def inner(self, w: ValueWriter, x: Value) -> Value:
        """Inputs of ``down`` for x [T, width]."""

    def write(self, w: PassWriter, x: Value, norm: RMSNorm | None = None) -> None:
        """``norm``: of the outputs."""
        w.add(self.down, self.inner(w, x), norm)

    def stored(self) -> list[Stored]:
        return [self.first, self.down]

    def slots(self, prefix: str) -> Slots:
        return self.first.slots(prefix) | self.down.slots(prefix)


class GatedMLP(MLP):
    """``down(act(gate(x)) * up(x))``; gate and up are one matrix, ``fused`` in some checkpoints."""

    def __init__(
        self,
        width: int,
        inner: int,
        act: str,
        bias: bool,
        place: Place,
        fused: Fused | None = None,
    ) -> None:
        parts = {"gate_proj": inner, "up_proj": inner}
        self.first = ColumnLinear(width, parts, bias, place, paired=True, fused=fused)
        self.down = RowLinear(inner, "down_proj", width, bias, place)
        self.act = act

    def inner(self, w: ValueWriter, x: Value) -> Value:
        return w.gate(x, self.first, self.act)


class PlainMLP(MLP):
    """``down(act(up(x)))``; ``names`` are the two matrices' in a checkpoint."""

    def __init__(
        self,
        width: int,
        inner: int,
        act: str,
        bias: bool,
        place: Place,
        names: tuple[str, str],
        transposed: bool = False,
    ) -> None:
        up, down = names
        fused = Fused(up, transposed=True) if transposed else None
        self.first = ColumnLinear(width, {up: inner}, bias, place, fused=fused)
        self.down = RowLinear(inner, down, width, bias, place, transposed)
        self.act = act

    def inner(self, w: ValueWriter, x: Value) -> Value:
        return w.activate(w.product(x, self.first), self.act)
