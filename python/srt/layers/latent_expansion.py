"""Expansion: the weights that bring queries to the space of latents, and sums of latents back, in
multi-head latent attention (``layers.latent``)."""

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
    """Attention of one layer of the whole model (a rank holds a share of its heads).

    Attributes:
        width: of the hidden states.
        rank: of the latents of keys and values; query_rank: of those of queries, 0: there are none.
        still, turned: dimensions of a query that have no position, and after them those that turn.
        value: dimensions of a head's value.
        scale: multiplies the scores.
        eps: of the norms of latents.
        bias: of the projections from and to hidden states.
        pairs: dimensions ``2 i`` and ``2 i + 1`` of what turns in the checkpoint turn together.
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
    """A matrix for each head, its own part of the input's heads."""

    def __init__(self, weights: list[Weight]) -> None:
        self.parts = []
        for weight in weights:
            part = Stored()
            part.weight = weight
            self.parts.append(part)

    @cached_property
    def packed(self) -> Parts | None:
        """All of them once they are packed; to be called after loading."""
        found = [part.packed for part in self.parts if part.packed is not None]
        if not found:
            return None
        from sgl_kernel.packed import Parts

        return Parts(found)

    def product(self, x: Tensor) -> Tensor:
        """x [T, heads, inputs] -> [T, heads, outputs], of packed matrices."""
        assert self.packed is not None
        found: Tensor = self.packed(x, self.parts[0].threads)
        return found


class Expansion:
    """``kv_b_proj``, W_UK and W_UV head by head: [heads, still + value, rank].

    Its parts are matrices of their own, which native products may read in their own layout. None
    keeps the whole, so that it goes when they are packed.
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
        """Queries [T, heads, still] in the space of latents: [T, heads, rank]."""
        if self.keys.packed is not None:
            return self.keys.product(x)
        return torch.bmm(x.transpose(0, 1), self.whole[:, : self.shape.still]).transpose(0, 1)

    def values(self, x: Tensor) -> Tensor:
        """Sums of latents [T, heads, rank] as sums of values: [T, heads, value]."""
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
