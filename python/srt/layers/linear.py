"""Linear layers split over a tensor-parallel group (Megatron-LM, section 3).

A rank holds a slice of the outputs of a column-parallel layer, and a slice of the inputs of a
row-parallel layer, whose partial results are summed over the group. A column-parallel layer
followed by a row-parallel one needs a single all-reduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.numeric.host_arrays import Array

# Orders the rows of a checkpoint's weight [rows, inputs] or bias [rows].
Arrange: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True)
class Fused:
    """The checkpoint tensor ``name`` that holds all parts of a ``ColumnLinear``.

    ``arrange`` reorders the rows of its weight [rows, inputs] and bias [rows], so that the parts
    follow each other. ``transposed``: the checkpoint has the weight as [inputs, rows].
    """

    name: str
    arrange: Arrange | None = None
    transposed: bool = False


class ColumnLinear(Stored):
    """``y = x W^T + b`` with the rows of several checkpoint matrices stacked in one ``W``.

    ``parts``: number of outputs of each matrix by name. The result has this rank's share of each
    part's outputs, side by side. ``unit``: outputs that stay on one rank (head_dim); if a part has
    fewer units than there are ranks, several ranks hold the same unit.
    ``paired``: the parts are gate and up, which native products combine.
    ``fused``: one checkpoint tensor holds all parts; part names then occur in messages only.
    ``arrange``: by part, the function that reorders the rows of its checkpoint tensors.
    """

    def __init__(
        self,
        inputs: int,
        parts: Mapping[str, int],
        bias: bool,
        place: Place,
        unit: int = 1,
        paired: bool = False,
        fused: Fused | None = None,
        arrange: Mapping[str, Arrange] | None = None,
    ) -> None:
        self.inputs, self.parts, self.group = inputs, dict(parts), place.group
        shares = [
            place.group.heads(size // unit, f"the width of {name}")
            if unit > 1
            else (share := place.group.share(size, f"the width of {name}"), share * self.group.rank)
            for name, size in self.parts.items()
        ]
        self.sizes = [unit * count for count, _ in shares]
        self.starts = [unit * first for _, first in shares]
        self.weight, self.paired = place.matrix(sum(self.sizes), inputs), paired
        self.fused, self.arrange = fused, arrange or {}
        self.bias = place.empty(sum(self.sizes)) if bias else None

    def _mine(self, source: Array) -> Array:
        """Return this rank's rows of a fused checkpoint tensor [rows, ...]."""
        assert self.fused is not None
        if self.fused.transposed:
            source = source.T  # no effect on a bias
        if self.fused.arrange is not None:
            source = self.fused.arrange(source)
        parts = np.split(source, np.cumsum(list(self.parts.values()))[:-1])
        return np.concatenate([p[s : s + n] for p, s, n in zip(parts, self.starts, self.sizes)])

    def _fused_slots(self, name: str) -> Slots:
        assert self.fused is not None
        total = sum(self.parts.values())
        shape = (self.inputs, total) if self.fused.transposed else (total, self.inputs)
        rowwise = not self.fused.transposed
        out = {f"{name}.weight": Slot(self.weight, shape, adapt=self._mine, rowwise=rowwise)}
        if self.bias is not None:
            out[f"{name}.bias"] = Slot(self.bias, (total,), kind="bias", adapt=self._mine)
        return out

    def slots(self, prefix: str) -> Slots:
        if self.fused is not None:
            return self._fused_slots(f"{prefix}{self.fused.name}")
        out: Slots = {}
        first = 0
        for (name, total), size, start in zip(self.parts.items(), self.sizes, self.starts):
            rows = slice(first, first + size)
            adapt = self.arrange.get(name)
            shape = (total, self.inputs)
            out[f"{prefix}{name}.weight"] = Slot(
                self.weight[rows], shape, 0, start, adapt=adapt, rowwise=True
            )
            if self.bias is not None:
                bias = Slot(self.bias[rows], (total,), 0, start, "bias", adapt)
                out[f"{prefix}{name}.bias"] = bias
            first += size
        return out


class RowLinear(Stored):
    """``y = x W^T + b`` where ``x`` is this rank's slice of the inputs. ``transposed``: the
    checkpoint has the weight as [inputs, outputs]."""

    def __init__(
        self,
        inputs: int,
        name: str,
        outputs: int,
        bias: bool,
        place: Place,
        transposed: bool = False,
    ) -> None:
        self.name, self.group, self.transposed = name, place.group, transposed
        self.shape = (outputs, inputs)
        self.weight = place.matrix(outputs, place.group.share(inputs, f"the input of {name}"))
        self.bias = place.empty(outputs) if bias else None

    def slots(self, prefix: str) -> Slots:
        start = self.group.rank * self.weight.shape[1]
        weight = Slot(self.weight, self.shape, 1, start)
        if self.transposed:
            weight = Slot(self.weight, self.shape[::-1], 1, start, adapt=np.transpose)
        out = {f"{prefix}{self.name}.weight": weight}
        if self.bias is not None:
            out[f"{prefix}{self.name}.bias"] = Slot(self.bias, self.shape[:1], kind="bias")
        return out
