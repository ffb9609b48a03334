"""Expansion: the weights W_UK and W_UV of multi-head latent attention (``layers.latent``), which
map queries to the space of latents, and sums of latents to sums of values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.numeric.host_arrays import Weight, beginning
from sglang.srt.numeric.torch_later import Tensor, torch

if TYPE_CHECKING:
    from sgl_kernel.packed import Parts


@dataclass(frozen=True)
class LatentShape:
    """Sizes of one layer's attention in the whole model (a rank holds a share of its heads).

    Attributes:
        width: width of the hidden states.
        rank, query_rank: dimensions of the latents of keys and values, and of queries (0: none).
        still, turned: a query's dimensions that are not rotated, and after them the rotated ones.
        value: dimensions of a head's value.
        scale: factor of the scores.
        eps: epsilon of the norms of latents.
        bias: the projections from and to hidden states have biases.
        pairs: the checkpoint rotates dimensions ``2 i`` and ``2 i + 1`` together.
    """

    width: int
    num_heads: int
    rank: int
    query_rank: int
    still: int
    turned: int
    value: int
    scale: float
    eps: float
    bias: bool
    pairs: bool


class PerHead:
    """One matrix per head, which multiplies that head's part of the input."""

    def __init__(self, weights: list[Weight]) -> None:
        self.parts = []
        for weight in weights:
            part = Stored()
            part.weight = weight
            self.parts.append(part)

    @cached_property
    def packed(self) -> Parts | None:
        """The packed matrices of all heads, None if they are not packed. Read after loading."""
        found = [part.packed for part in self.parts if part.packed is not None]
        if not found:
            return None
        from sgl_kernel.packed import Parts

        return Parts(found)

    def product(self, x: Tensor) -> Tensor:
        """Return the products [T, heads, outputs] of packed matrices with x [T, heads, inputs]."""
        assert self.packed is not None
        found: Tensor = self.packed(x, self.parts[0].threads)
        return found


class Expansion:
    """``kv_b_proj`` [heads, still + value, rank]: W_UK and W_UV of each head.

    The parts are separate matrices, which may be packed for native products. Only views of the
    whole tensor are kept, so that packing frees its memory.
    """

    def __init__(self, shape: LatentShape, heads: int, place: Place) -> None:
        self.shape, self.count = shape, heads
        self.first = place.group.rank * heads
        whole = place.empty(heads, shape.still + shape.value, shape.rank)
        self.keys = PerHead([w[: shape.still].T for w in whole])
        self.of_values = PerHead([w[shape.still :] for w in whole])

    @property
    def whole(self) -> Weight:
        shape, first = self.shape, self.keys.parts[0].weight
        size = (self.count, shape.still + shape.value, shape.rank)
        if isinstance(first, np.ndarray):
            return beginning(first, size)
        return first.as_strided(size, (size[1] * size[2], size[2], 1), 0)

    def queries(self, x: Tensor) -> Tensor:
        """Map queries [T, heads, still] to the space of latents [T, heads, rank] (W_UK)."""
        if self.keys.packed is not None:
            return self.keys.product(x)
        return torch.bmm(x.transpose(0, 1), self.whole[:, : self.shape.still]).transpose(0, 1)

    def values(self, x: Tensor) -> Tensor:
        """Map sums of latents [T, heads, rank] to sums of values [T, heads, value] (W_UV)."""
        if self.of_values.packed is not None:
            return self.of_values.product(x)
        weight = self.whole[:, self.shape.still :].transpose(1, 2)
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)

    def stored(self) -> list[Stored]:
        return [*self.keys.parts, *self.of_values.parts]

    def slots(self, prefix: str) -> Slots:
        each, rank = self.shape.still + self.shape.value, self.shape.rank
        target = self.whole.reshape(-1, rank)
        shape = (self.shape.num_heads * each, rank)
        return {f"{prefix}kv_b_proj.weight": Slot(target, shape, 0, self.first * each)}
