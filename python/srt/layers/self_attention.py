"""SelfAttention: projections and norms of heads. The package ``attention`` computes the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.layers.linear import Arrange, ColumnLinear, Fused, RowLinear
from sglang.srt.layers.norm import HeadNorm, HeadNorms, RMSNorm, WholeRMSNorm
from sglang.srt.layers.pass_writer import PassWriter, Value
from sglang.srt.layers.rotary import Rotary, from_pairs
from sglang.srt.layers.weight import Place, Slot, Slots, Stored


@dataclass(frozen=True)
class AttentionNames:
    """Names of the projections in a checkpoint; ``fused``: q, k and v are one tensor."""

    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    out: str = "o_proj"
    fused: Fused | None = None
    transposed: bool = False  # the output projection is [inputs, outputs]


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one layer's attention in the whole model (a rank holds a share of its heads).

    Attributes:
        width: width of the hidden states.
        scale: factor of the scores; 0: ``head_dim ** -0.5``.
        window, soft_cap: as in ``attention.attention_protocol.Heads``.
        qkv_bias, out_bias: the projections have biases.
        qk_eps: epsilon of the RMSNorms on the heads of q and k; 0: no such norms.
        qk_above: ``RMSNorm.above`` of these norms.
        qk_whole: these norms go over all heads of a token together.
        pairs: the checkpoint rotates dimensions ``2 i`` and ``2 i + 1`` of a head together.
        sinks: the layer has ``attention.attention_protocol.Heads.sinks``.
    """

    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float = 0.0
    window: int = 0
    soft_cap: float = 0.0
    qkv_bias: bool = False
    out_bias: bool = False
    qk_eps: float = 0.0
    qk_above: float = 0.0
    qk_whole: bool = False
    pairs: bool = False
    sinks: bool = False
    names: AttentionNames = AttentionNames()


class SelfAttention:
    """Grouped-query attention (Ainslie et al. 2023). Norms of queries and keys, if any, are applied
    before the rotation. Without ``rotary`` queries and keys are not rotated."""

    def __init__(
        self, shape: AttentionShape, index: int, place: Place, rotary: Rotary | None
    ) -> None:
        """``index``: the layer's index among the KV pools."""
        d, group = shape.head_dim, place.group
        self.shape, self.group = shape, group
        queries = group.share(shape.num_heads, "num_attention_heads")
        self.heads = Heads(
            index=index,
            num_heads=queries,
            num_kv_heads=group.heads(shape.num_kv_heads, "num_key_value_heads")[0],
            head_dim=d,
            scale=shape.scale or d**-0.5,
            window=shape.window,
            soft_cap=shape.soft_cap,
            sinks=place.floats(queries) if shape.sinks else None,
        )
        queries, kv = shape.num_heads * d, shape.num_kv_heads * d
        names = shape.names
        parts = {names.q: queries, names.k: kv, names.v: kv}
        self.rotary = rotary
        arrange: dict[str, Arrange] = {}
        if shape.pairs and rotary is not None:
            order = partial(from_pairs, head_dim=d, turned=rotary.turned)
            arrange = {names.q: order, names.k: order}
        self.qkv = ColumnLinear(
            shape.width, parts, shape.qkv_bias, place, unit=d, fused=names.fused, arrange=arrange
        )
        self.out = RowLinear(
            queries, names.out, shape.width, shape.out_bias, place, names.transposed
        )
        self.norms: HeadNorms | None = None
        if shape.qk_eps:
            counts = (shape.num_heads, shape.num_kv_heads)
            self.norms = HeadNorms(*(self.head_norm(shape, count, place) for count in counts))

    def head_norm(self, shape: AttentionShape, heads: int, place: Place) -> HeadNorm:
        """Return the norm of q or of k, which has ``heads`` heads in all ranks."""
        if shape.qk_whole:
            return WholeRMSNorm(heads * shape.head_dim, shape.qk_eps, place)
        return RMSNorm(shape.head_dim, shape.qk_eps, place, shape.qk_above)

    def write(self, w: PassWriter, x: Value) -> Value:
        """Write the layer without its output projection: [T, width] -> [T, heads * head_dim]."""
        return w.attend(w.product(x, self.qkv), self.heads, self.rotary, self.norms)

    def stored(self) -> list[Stored]:
        return [self.qkv, self.out]

    def slots(self, prefix: str) -> Slots:
        out = self.qkv.slots(prefix) | self.out.slots(prefix)
        if self.norms is not None:
            out |= self.norms.q.slots(f"{prefix}q_norm.weight")
            out |= self.norms.k.slots(f"{prefix}k_norm.weight")
        if (sinks := self.heads.sinks) is not None:
            start, shape = self.group.rank * len(sinks), (self.shape.num_heads,)
            out[f"{prefix}sinks"] = Slot(sinks, shape, 0, start, "bias")
        return out
