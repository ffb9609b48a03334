"""PreNorm: the block of most decoders, with the norms before the sublayers (Xiong et al. 2020)."""

from __future__ import annotations

from typing import ClassVar

from sglang.srt.layers.latent import LatentAttention
from sglang.srt.layers.mlp import FeedForward
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.pass_writer import PassWriter
from sglang.srt.layers.self_attention import SelfAttention
from sglang.srt.layers.weight import Slots, Stored


class PreNorm:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``. Model families set the four parts.

    ``ATTENTION``, ``MLP``, ``ATTENTION_NORM``, ``MLP_NORM``: names of the parts in a checkpoint.
    """

    ATTENTION: ClassVar[str] = "self_attn."
    MLP: ClassVar[str] = "mlp."
    ATTENTION_NORM: ClassVar[str] = "input_layernorm.weight"
    MLP_NORM: ClassVar[str] = "post_attention_layernorm.weight"

    attention: SelfAttention | LatentAttention
    mlp: FeedForward
    attention_norm: RMSNorm | LayerNorm
    mlp_norm: RMSNorm | LayerNorm

    def write(self, w: PassWriter, last: bool) -> None:
        y = self.attention.write(w, w.read(self.attention_norm))
        if last:
            [y] = w.choose(y)
        w.add(self.attention.out, y)
        self.mlp.write(w, w.read(self.mlp_norm))

    def stored(self) -> list[Stored]:
        return [*self.attention.stored(), *self.mlp.stored()]

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}{self.ATTENTION}")
            | self.mlp.slots(f"{prefix}{self.MLP}")
            | self.attention_norm.slots(f"{prefix}{self.ATTENTION_NORM}")
            | self.mlp_norm.slots(f"{prefix}{self.MLP_NORM}")
        )
