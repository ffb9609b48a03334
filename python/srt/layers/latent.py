"""LatentAttention: multi-head latent attention (DeepSeek-V2, 2024, section 2.1).

A token leaves one vector in the cache, from which the keys and values of all heads follow:

    key of head h    W_UK[h] latent, and beside it a rotated part that all heads share
    value of head h  W_UV[h] latent

Neither is ever computed. A product with a key is one with the latent, ``q W_UK[h] latent``, so
queries are brought to the latents' space first; and a weighted sum of values is W_UV[h] times that
of latents, which is brought back afterwards. For the attention between this is one key head of
``rank + rotated`` dimensions whose values are its first ``rank``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.layers.linear import Arrange, ColumnLinear, RowLinear
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.rotary import Rotary, from_pairs
from sglang.srt.layers.step import ForwardStep
from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.numeric.host_arrays import Array, Weight, outline
from sglang.srt.numeric.torch_later import Tensor, torch
from sglang.srt.parallel.groups import Group

if TYPE_CHECKING:
    from sgl_kernel.packed import Parts


@dataclass(frozen=True)
class LatentShape:
    """Attention of one layer of the whole model (a rank holds a share of its heads).

    Attributes:
        width: of the hidden states.
        rank: of the latents of keys and values; query_rank: of those of queries, 0: there are none.
        still, turned: dimensions of a query that have no position, and behind them those that turn.
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


class LatentAttention:
    def __init__(self, shape: LatentShape, index: int, place: Place, rotary: Rotary) -> None:
        """``index``: the layer's index among the KV pools. ``rotary``: of ``shape.turned``
        dimensions."""
        self.shape, self.rotary = shape, rotary
        heads = place.group.share(shape.num_heads, "num_attention_heads")
        self.heads = Heads(
            index=index,
            num_heads=heads,
            num_kv_heads=1,
            head_dim=shape.rank + shape.turned,
            scale=shape.scale,
            value_dim=shape.rank,
        )
        alone = replace(place, group=Group())  # for weights that every rank holds whole
        unit = shape.still + shape.turned
        # Queries from the hidden states, or from a latent of their own.
        self.query_latent: ColumnLinear | None = None
        self.query_norm: RMSNorm | None = None
        name, inputs = "q_proj", shape.width
        if shape.query_rank:
            name, inputs = "q_b_proj", shape.query_rank
            parts = {"q_a_proj": inputs}
            self.query_latent = ColumnLinear(shape.width, parts, shape.bias, alone)
            self.query_norm = RMSNorm(inputs, shape.eps, place)
        queries = {name: shape.num_heads * unit}
        self.query = ColumnLinear(
            inputs, queries, False, place, unit=unit, arrange=self._order(name, shape.still)
        )
        name = "kv_a_proj_with_mqa"
        self.latent = ColumnLinear(
            shape.width, {name: shape.rank + shape.turned}, shape.bias, alone,
            arrange=self._order(name, shape.rank),
        )  # fmt: skip
        self.latent_norm = RMSNorm(shape.rank, shape.eps, place)
        self.expand = Expansion(shape, heads, place)
        self.out = RowLinear(
            shape.num_heads * shape.value, "o_proj", shape.width, shape.bias, place
        )

    def _order(self, name: str, still: int) -> dict[str, Arrange]:
        if not self.shape.pairs:
            return {}
        return {name: partial(_order_behind, still=still, turned=self.shape.turned)}

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        """[T, width] -> [T, width]."""
        shape, angles = self.shape, step.angles(self.rotary)
        y = x
        if self.query_latent is not None and self.query_norm is not None:
            y = self.query_norm(self.query_latent(x, step.use))
        q = self.query(y, step.use).unflatten(1, (self.heads.num_heads, -1))
        still, turning = q.split_with_sizes((shape.still, shape.turned), -1)
        q = torch.cat([self.expand.queries(still), self.rotary.rotate(turning, angles)], -1)
        latent, turning = self.latent(x, step.use).split_with_sizes((shape.rank, shape.turned), -1)
        turned = self.rotary.rotate(turning.unsqueeze(1), angles)
        k = torch.cat([self.latent_norm(latent).unsqueeze(1), turned], -1)
        y = step.attention.attend(self.heads, q, k, None)
        y = self.expand.values(y.unflatten(1, (self.heads.num_heads, -1))).flatten(1)
        return self.out(y, step.use)

    def stored(self) -> list[Stored]:
        first = [] if self.query_latent is None else [self.query_latent]
        return [*first, self.query, self.latent, *self.expand.stored(), self.out]

    def slots(self, prefix: str) -> Slots:
        out: Slots = {}
        for layer in (self.query_latent, self.query, self.latent, self.expand, self.out):
            if layer is not None:
                out |= layer.slots(prefix)
        if self.query_norm is not None:
            out |= self.query_norm.slots(f"{prefix}q_a_layernorm.weight")
        return out | self.latent_norm.slots(f"{prefix}kv_a_layernorm.weight")


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
        shape, first = self.shape, self.of_values.parts[0].weight
        size = (self.count, shape.still + shape.value, shape.rank)
        if isinstance(first, np.ndarray):  # no native operation is recorded of it
            return outline(size, first.dtype)
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


def _order_behind(rows: Array, still: int, turned: int) -> Array:
    """``from_pairs`` of the last ``turned`` outputs of each head, which has ``still`` before."""
    heads = rows.reshape(-1, still + turned, *rows.shape[1:])
    behind = heads[:, still:]
    last = from_pairs(behind.reshape(-1, *rows.shape[1:]), turned, turned)
    both = np.concatenate([heads[:, :still], last.reshape(behind.shape)], 1)
    found: Array = both.reshape(rows.shape)
    return found
