"""Feed-forward layers: GatedMLP (Shazeer, "GLU variants improve Transformer", 2020), and PlainMLP
as in the first transformer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from sglang.srt.layers.linear import ColumnLinear, Fused, RowLinear
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.pass_writer import PassWriter, Value, ValueWriter
from sglang.srt.layers.weight import LayerWeights, Place, Slots, Stored


class FeedForward(LayerWeights, Protocol):
    """The feed-forward part of a block, which computes each token separately."""

    def write(self, w: PassWriter, x: Value) -> None:
        """Add the layer's outputs for x [T, width] to the residual stream."""


class MLP:
    """Layer of two products. ``inner`` writes the first product and the activation."""

    first: ColumnLinear
    down: RowLinear

    @abstractmethod
    def inner(self, w: ValueWriter, x: Value) -> Value:
        """Write the computation of the inputs of ``down`` from x [T, width]; return them."""

    def write(self, w: PassWriter, x: Value, norm: RMSNorm | None = None) -> None:
        """Add the layer's outputs for x [T, width] to the stream, normed by ``norm`` if given."""
        w.add(self.down, self.inner(w, x), norm)

    def stored(self) -> list[Stored]:
        return [self.first, self.down]

    def slots(self, prefix: str) -> Slots:
        return self.first.slots(prefix) | self.down.slots(prefix)


class GatedMLP(MLP):
    """``down(act(gate(x)) * up(x))``. ``first`` stacks gate and up; ``fused``: see ColumnLinear."""

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
    """``down(act(up(x)))``. ``names``: names of up and down in a checkpoint."""

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
