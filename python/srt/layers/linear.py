"""Linear layers split over a tensor-parallel group (Megatron-LM, section 3).

A column-parallel layer holds a slice of the outputs, a row-parallel one a slice of the inputs and
sums its partial results over the group; one after the other costs a single all-reduce.
"""

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

    ``arrange`` makes rows of it, part after part, of its weight [rows, inputs] and of its bias
    [rows]. ``transposed``: the checkpoint has the weight as [inputs, rows].
    """

    name: str
    arrange: Arrange | None = None
    transposed: bool = False


class ColumnLinear(Stored):
    """``y = x W^T + b`` with the rows of several checkpoint matrices stacked in one ``W``.

    ``parts`` maps each matrix's name to its number of outputs; the result is their outputs side by
    side, each of this rank's share. ``unit`` is what may not be split inside a part (head_dim);
    where ranks outnumber the units of a part, several ranks hold the same one.
    ``paired``: two parts, a gate and what it gates, which native products bring together.
    ``fused``: one checkpoint tensor has all parts; their names are for messages alone.
    ``arrange``: by part, what orders the rows of its checkpoint tensors.
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
        """This rank's rows of a fused tensor [rows, ...]."""
        assert self.fused is not None
        if self.fused.transposed:
            source = source.T  # a bias stays as it is
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
