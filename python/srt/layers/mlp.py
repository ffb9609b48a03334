"""Feed-forward layers: the gated one (Shazeer, "GLU variants improve Transformer", 2020) and the
plain one of the first transformer."""

from __future__ import annotations

from typing import Protocol

from sglang.srt.layers.activations import ACTIVATIONS
from sglang.srt.layers.linear import ColumnLinear, Fused, RowLinear
from sglang.srt.layers.lora import Use
from sglang.srt.layers.tape_recorder import ProductInput, TapeRecorder
from sglang.srt.layers.weight import Place, Slots, Stored
from sglang.srt.numeric.torch_later import Tensor


class FeedForward(Protocol):
    """The part of a block that computes each token by itself."""

    def __call__(self, x: Tensor, use: Use | None = None) -> Tensor:
        """[T, width] -> [T, width]. ``use``: the pass's adapters."""
        ...

    def record(self, tape: TapeRecorder, x: ProductInput, residual: int) -> None:
        """Add the layer's outputs to the residual stream."""
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

    def __call__(self, x: Tensor, use: Use | None = None) -> Tensor:
        return self.down(self.gate_up.gated(x, self.act, use), use)

    def record(self, tape: TapeRecorder, x: ProductInput, residual: int) -> None:
        """Add the layer's outputs to the residual stream."""
        self.down.record(tape, ProductInput(self.gate_up.record(tape, x, self.act)), residual)

    def outputs(self, tape: TapeRecorder, x: ProductInput) -> int:
        """The outputs' buffer."""
        return self.down.outputs(tape, ProductInput(self.gate_up.record(tape, x, self.act)))

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

    def __call__(self, x: Tensor, use: Use | None = None) -> Tensor:
        return self.down(ACTIVATIONS[self.act](self.up(x, use)), use)

    def record(self, tape: TapeRecorder, x: ProductInput, residual: int) -> None:
        """Add the layer's outputs to the residual stream."""
        inner = self.up.record(tape, x)
        tape.activate(inner, self.act)
        self.down.record(tape, ProductInput(inner), residual)

    def stored(self) -> list[Stored]:
        return [self.up, self.down]

    def slots(self, prefix: str) -> Slots:
        return self.up.slots(prefix) | self.down.slots(prefix)
