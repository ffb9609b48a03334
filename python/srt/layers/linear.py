"""Linear layers split over a tensor-parallel group (Megatron-LM, section 3).

A column-parallel layer holds a slice of the outputs, a row-parallel one a slice of the inputs and
sums its partial results over the group; one after the other costs a single all-reduce.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from srt.layers.recorder import Recorder, Source
from srt.layers.weight import Place, Slot, Slots, Stored


class ColumnLinear(Stored):
    """``y = x W^T + b`` with the rows of several checkpoint matrices stacked in one ``W``.

    ``parts`` maps each matrix's name to its number of outputs; the result is their outputs side by
    side, each of this rank's share. ``unit`` is what may not be split inside a part (head_dim).
    ``paired``: two parts, a gate and what it gates, which native products bring together.
    """

    def __init__(
        self,
        inputs: int,
        parts: Mapping[str, int],
        bias: bool,
        place: Place,
        unit: int = 1,
        paired: bool = False,
    ) -> None:
        self.inputs, self.parts, self.group = inputs, dict(parts), place.group
        self.sizes = [
            unit * place.group.share(size // unit, f"the width of {name}")
            for name, size in self.parts.items()
        ]
        self.weight, self.paired = place.empty(sum(self.sizes), inputs), paired
        self.bias = place.empty(sum(self.sizes)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, sum(sizes)]."""
        return self.product(x, self.bias)

    def record(self, tape: Recorder, x: Source, act: str = "silu") -> int:
        """The outputs' buffer; of a paired layer ``act(gate) * up``."""
        return tape.linear(x, self, act=act)

    def slots(self, prefix: str) -> Slots:
        out: Slots = {}
        first = 0
        for (name, total), size in zip(self.parts.items(), self.sizes):
            rows, start = slice(first, first + size), self.group.rank * size
            out[f"{prefix}{name}.weight"] = Slot(self.weight[rows], (total, self.inputs), 0, start)
            if self.bias is not None:
                out[f"{prefix}{name}.bias"] = Slot(self.bias[rows], (total,), 0, start, "bias")
            first += size
        return out


class RowLinear(Stored):
    """``y = x W^T + b`` where ``x`` is this rank's slice of the inputs."""

    def __init__(self, inputs: int, name: str, outputs: int, bias: bool, place: Place) -> None:
        self.name, self.group = name, place.group
        self.shape = (outputs, inputs)
        self.weight = place.empty(outputs, place.group.share(inputs, f"the input of {name}"))
        self.bias = place.empty(outputs) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """[T, inputs / size] -> [T, outputs]. The bias joins once, after the sum."""
        if self.group.size == 1:
            return self.product(x, self.bias)
        y = self.group.all_reduce(self.product(x))
        return y if self.bias is None else y + self.bias

    def record(self, tape: Recorder, x: Source, residual: int) -> None:
        """Add the outputs to the residual stream."""
        tape.linear(x, self, residual)

    def slots(self, prefix: str) -> Slots:
        start = self.group.rank * self.weight.shape[1]
        out = {f"{prefix}{self.name}.weight": Slot(self.weight, self.shape, 1, start)}
        if self.bias is not None:
            out[f"{prefix}{self.name}.bias"] = Slot(self.bias, self.shape[:1], kind="bias")
        return out
