"""SelfAttention: projections, norms of heads, rotation; the attending itself is ``attention``'s."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.layers.linear import Arrange, ColumnLinear, Fused, RowLinear
from sglang.srt.layers.norm import RMSNorm, WholeRMSNorm
from sglang.srt.layers.operations import HeadGains, RotateAppend
from sglang.srt.layers.rotary import Rotary, from_pairs
from sglang.srt.layers.step import ForwardStep
from sglang.srt.layers.tape_recorder import ProductInput, TapeRecorder
from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.numeric.torch_later import Tensor


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
    """Attention of one layer of the whole model (a rank holds a share of its heads).

    Attributes:
        width: of the hidden states.
        scale: multiplies the scores; 0: ``head_dim ** -0.5``.
        window, soft_cap: as in ``attention.attention_protocol.Heads``.
        qkv_bias, out_bias: which biases there are.
        qk_eps: of the RMSNorms on the heads of q and k; 0 where they are not normed.
        qk_above: as ``RMSNorm.above`` of these.
        qk_whole: they go over all heads of a token at once.
        pairs: dimensions ``2 i`` and ``2 i + 1`` of the checkpoint's heads turn together.
        sinks: there are ``attention.attention_protocol.Heads.sinks``.
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


class HeadNorm(Protocol):
    """Norms heads [T, heads, head_dim]."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def slots(self, name: str) -> Slots: ...


@dataclass(frozen=True)
class FusedRotation:
    """The layer's part of a call of ``operations.RotateAppend``."""

    kernel: RotateAppend
    rotary: Rotary
    gains: HeadGains | None


class SelfAttention:
    """Grouped-query attention (Ainslie et al. 2023). With norms, queries and keys are normed per
    head, or all heads at once, before they are rotated; without ``rotary`` they are not rotated."""

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
        self.q_norm = self.head_norm(shape, shape.num_heads, place)
        self.k_norm = self.head_norm(shape, shape.num_kv_heads, place)
        self.split = (self.heads.num_heads, self.heads.num_kv_heads)
        self.fused = self._fused_rotation(place)

    def head_norm(self, shape: AttentionShape, heads: int, place: Place) -> HeadNorm | None:
        """The norm of ``heads`` heads of q or k."""
        if not shape.qk_eps:
            return None
        if shape.qk_whole:
            return WholeRMSNorm(heads * shape.head_dim, shape.qk_eps, place)
        return RMSNorm(shape.head_dim, shape.qk_eps, place, shape.qk_above)

    def _fused_rotation(self, place: Place) -> FusedRotation | None:
        """None where there is no kernel, no rotation, or a norm that the kernel does not have."""
        kernel, gains = place.operations.rotate_append, None
        if isinstance(self.q_norm, RMSNorm) and isinstance(self.k_norm, RMSNorm):
            gains = (self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        other = gains is None and self.q_norm is not None
        if kernel is None or self.rotary is None or other:
            return None
        return FusedRotation(kernel, self.rotary, gains)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        """[T, width] -> [T, width]."""
        qkv, fused = self.qkv(x, step.use), self.fused
        if fused is None or (attention := step.writable) is None:
            return self.out(self._attend(qkv, step), step.use)
        target = attention.target(self.heads)
        angles = step.rows(fused.rotary)
        q = fused.kernel(qkv, self.heads.num_heads, fused.gains, angles, target)
        return self.out(attention.read(self.heads, q), step.use)

    def _attend(self, qkv: Tensor, step: ForwardStep) -> Tensor:
        """Attention outputs, with norms and rotation as operations of their own."""
        queries, kv = self.split
        qkv = qkv.view(qkv.shape[0], queries + 2 * kv, -1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = qkv.split_with_sizes((queries, kv, kv), 1)
            q, k = self._rotate(self.q_norm(q), step), self._rotate(self.k_norm(k), step)
        else:
            qk, v = qkv.split_with_sizes((queries + kv, kv), 1)
            q, k = self._rotate(qk, step).split_with_sizes((queries, kv), 1)
        return step.attention.attend(self.heads, q, k, v)

    def _rotate(self, x: Tensor, step: ForwardStep) -> Tensor:
        return x if self.rotary is None else self.rotary.rotate(x, step.angles(self.rotary))

    def record(self, tape: TapeRecorder, x: ProductInput) -> int:
        """All but the output projection."""
        gains = None
        if isinstance(self.q_norm, RMSNorm) and isinstance(self.k_norm, RMSNorm):
            gains = (self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        qkv, first = self.qkv.record(tape, x), 0
        for norm, heads in zip((self.q_norm, self.k_norm), self.split):
            if isinstance(norm, WholeRMSNorm):
                tape.norm_columns(qkv, first, norm.weight, norm.eps)
            first += heads * self.heads.head_dim
        return tape.attend(qkv, self.heads, self.rotary, gains)

    def stored(self) -> list[Stored]:
        return [self.qkv, self.out]

    def slots(self, prefix: str) -> Slots:
        out = self.qkv.slots(prefix) | self.out.slots(prefix)
        if self.q_norm is not None and self.k_norm is not None:
            out |= self.q_norm.slots(f"{prefix}q_norm.weight")
            out |= self.k_norm.slots(f"{prefix}k_norm.weight")
        if (sinks := self.heads.sinks) is not None:
            start, shape = self.group.rank * len(sinks), (self.shape.num_heads,)
            out[f"{prefix}sinks"] = Slot(sinks, shape, 0, start, "bias")
        return out
