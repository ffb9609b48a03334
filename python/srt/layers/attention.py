"""SelfAttention: projections, norms of heads, rotation; the attending itself is ``attention``'s."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from srt.attention.base import Heads
from srt.layers.linear import ColumnLinear, RowLinear
from srt.layers.norm import RMSNorm
from srt.layers.recorder import Recorder, Source
from srt.layers.rotary import Rotary
from srt.layers.step import Step
from srt.layers.weight import Place, Slots, Stored


@dataclass(frozen=True)
class AttentionShape:
    """Attention of one layer of the whole model (a rank holds a share of its heads).

    Attributes:
        width: of the hidden states.
        scale: multiplies the scores; 0: ``head_dim ** -0.5``.
        window, soft_cap: as in ``attention.base.Heads``.
        qkv_bias, out_bias: which biases there are.
        qk_eps: of the RMSNorms on the heads of q and k; 0 where they are not normed.
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


class SelfAttention:
    """Grouped-query attention (Ainslie et al. 2023). With norms, queries and keys are normed per
    head before they are rotated; without ``rotary`` they are not rotated."""

    def __init__(
        self, shape: AttentionShape, index: int, place: Place, rotary: Rotary | None
    ) -> None:
        """``index``: the layer's place among the KV pools."""
        d, group = shape.head_dim, place.group
        self.heads = Heads(
            index=index,
            num_heads=group.share(shape.num_heads, "num_attention_heads"),
            num_kv_heads=group.share(shape.num_kv_heads, "num_key_value_heads"),
            head_dim=d,
            scale=shape.scale or d**-0.5,
            window=shape.window,
            soft_cap=shape.soft_cap,
        )
        queries, kv = shape.num_heads * d, shape.num_kv_heads * d
        parts = {"q_proj": queries, "k_proj": kv, "v_proj": kv}
        self.rotary = rotary
        self.qkv = ColumnLinear(shape.width, parts, shape.qkv_bias, place, unit=d)
        self.out = RowLinear(queries, "o_proj", shape.width, shape.out_bias, place)
        self.q_norm = RMSNorm(d, shape.qk_eps, place) if shape.qk_eps else None
        self.k_norm = RMSNorm(d, shape.qk_eps, place) if shape.qk_eps else None
        self.split = (self.heads.num_heads, self.heads.num_kv_heads)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[T, width] -> [T, width]."""
        queries, kv = self.split
        qkv = self.qkv(x).view(x.shape[0], queries + 2 * kv, -1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = qkv.split_with_sizes((queries, kv, kv), 1)
            q, k = self._rotate(self.q_norm(q), step), self._rotate(self.k_norm(k), step)
        else:
            qk, v = qkv.split_with_sizes((queries + kv, kv), 1)
            q, k = self._rotate(qk, step).split_with_sizes((queries, kv), 1)
        return self.out(step.attention.attend(self.heads, q, k, v))

    def _rotate(self, x: Tensor, step: Step) -> Tensor:
        return x if self.rotary is None else self.rotary.rotate(x, step.angles(self.rotary))

    def record(self, tape: Recorder, x: Source) -> int:
        """All but the output projection."""
        assert self.rotary is not None
        gains = None
        if self.q_norm is not None and self.k_norm is not None:
            gains = (self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        return tape.attend(self.qkv.record(tape, x), self.heads, self.rotary, gains)

    def stored(self) -> list[Stored]:
        return [self.qkv, self.out]

    def slots(self, prefix: str) -> Slots:
        out = self.qkv.slots(prefix) | self.out.slots(prefix)
        if self.q_norm is not None and self.k_norm is not None:
            out |= self.q_norm.slots(f"{prefix}q_norm.weight")
            out |= self.k_norm.slots(f"{prefix}k_norm.weight")
        return out
