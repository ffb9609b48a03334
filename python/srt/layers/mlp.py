"""Feed-forward layers: the gated one (Shazeer, "GLU variants improve Transformer", 2020) and the
plain one of the first transformer."""

from __future__ import annotations

from typing import Protocol

from sglang.srt.layers.linear import ColumnLinear, Fused, RowLinear
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.pass_writer import PassWriter, Value, ValueWriter
from sglang.srt.layers.weight import Place, Slots, Stored


class FeedForward(Protocol):
    """The part of a block that computes each token by itself."""

    def write(self, w: PassWriter, x: Value) -> None:
        """Add the layer's outputs for x [T, width] to the stream."""
        ...

    def stored(self) -> list[Stored]:
        """Everything in it with a matrix."""
        ...

    def slots(self, prefix: str) -> Slots:
        """Checkpoint tensors of the layer, whose names begin with ``prefix``."""
        ...


class GatedMLP:
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
        self.gate_up = ColumnLinear(width, parts, bias, place, paired=True, fused=fused)
        self.down = RowLinear(inner, "down_proj", width, bias, place)
        self.act = act

    def write(self, w: PassWriter, x: Value, norm: RMSNorm | None = None) -> None:
        """``norm``: of the outputs."""
        w.add(self.down, self.inner(w, x), norm)

    def inner(self, w: ValueWriter, x: Value) -> Value:
        """Inputs of ``down`` for x [T, width]."""
        return w.gate(x, self.gate_up, self.act)

    def stored(self) -> list[Stored]:
        return [self.gate_up, self.down]

    def slots(self, prefix: str) -> Slots:
        return self.gate_up.slots(prefix) | self.down.slots(prefix)


class PlainMLP:
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
        self.up = ColumnLinear(width, {up: inner}, bias, place, fused=fused)
        self.down = RowLinear(inner, down, width, bias, place, transposed)
        self.act = act

    def write(self, w: PassWriter, x: Value) -> None:
        w.add(self.down, self.inner(w, x))

    def inner(self, w: ValueWriter, x: Value) -> Value:
        """Inputs of ``down`` for x [T, width]."""
        return w.activate(w.product(x, self.up), self.act)

    def stored(self) -> list[Stored]:
        return [self.up, self.down]

    def slots(self, prefix: str) -> Slots:
        return self.up.slots(prefix) | self.down.slots(prefix)
