"""LatentAttention: multi-head latent attention (DeepSeek-V2, 2024, section 2.1).

The cache holds one vector per token, which determines the keys and values of all heads:

    key of head h    W_UK[h] latent, concatenated with a rotated part that all heads share
    value of head h  W_UV[h] latent

Keys and values are never computed. A query's product with a key is ``(q W_UK[h]) latent``, so W_UK
is applied to queries before attention. A weighted sum of values is W_UV[h] times the weighted sum
of latents, so W_UV is applied after attention. Attention itself has one key head of
``rank + rotated`` dimensions, whose first ``rank`` dimensions are the value.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.layers.latent_expansion import Expansion, LatentShape
from sglang.srt.layers.linear import Arrange, ColumnLinear, RowLinear
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.pass_writer import PassWriter, Value
from sglang.srt.layers.rotary import Rotary, from_pairs
from sglang.srt.layers.weight import Place, Slots, Stored
from sglang.srt.numeric.host_arrays import Array
from sglang.srt.parallel.groups import Group


class LatentAttention:
    def __init__(self, shape: LatentShape, index: int, place: Place, rotary: Rotary) -> None:
        """``index``: the layer's index among the KV pools. ``rotary``: rotates ``shape.turned``
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
        alone = replace(place, group=Group())  # for weights that are not split over the ranks
        unit = shape.still + shape.turned
        # Queries are computed from the hidden states, or from a separate latent.
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

    def write(self, w: PassWriter, x: Value) -> Value:
        """Compute the layer without its output projection: [T, width] -> [T, heads * value]."""
        y = x
        if self.query_latent is not None and self.query_norm is not None:
            y = w.norm(w.product(x, self.query_latent), self.query_norm)
        q, latent = w.product(y, self.query), w.product(x, self.latent)
        return w.attend_latent(q, latent, self.heads, self.rotary, self.latent_norm, self.expand)

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


def _order_behind(rows: Array, still: int, turned: int) -> Array:
    """Apply ``from_pairs`` to the rows of each head's last ``turned`` outputs, after ``still``."""
    heads = rows.reshape(-1, still + turned, *rows.shape[1:])
    behind = heads[:, still:]
    last = from_pairs(behind.reshape(-1, *rows.shape[1:]), turned, turned)
    both = np.concatenate([heads[:, :still], last.reshape(behind.shape)], 1)
    found: Array = both.reshape(rows.shape)
    return found
