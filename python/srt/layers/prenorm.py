"""PreNorm: the block of most decoders, with the norms before the sublayers (Xiong et al. 2020)."""

from __future__ import annotations

from typing import ClassVar

from sglang.srt.layers.latent import LatentAttention
from sglang.srt.layers.mlp import FeedForward
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.residual import Residual
from sglang.srt.layers.self_attention import SelfAttention
from sglang.srt.layers.step import ForwardStep
from sglang.srt.layers.tape_recorder import ProductInput, TapeRecorder
from sglang.srt.layers.weight import Slots, Stored


class PreNorm:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``. A family makes the four parts.

    ``ATTENTION``, ``MLP``, ``ATTENTION_NORM`` and ``MLP_NORM``: what a checkpoint calls them.
    """

    ATTENTION: ClassVar[str] = "self_attn."
    MLP: ClassVar[str] = "mlp."
    ATTENTION_NORM: ClassVar[str] = "input_layernorm.weight"
    MLP_NORM: ClassVar[str] = "post_attention_layernorm.weight"

    attention: SelfAttention | LatentAttention
    mlp: FeedForward
    attention_norm: RMSNorm | LayerNorm
    mlp_norm: RMSNorm | LayerNorm

    def __call__(self, stream: Residual, step: ForwardStep) -> Residual:
        x, y = self.attention_norm.join(stream)
        x, y = self.mlp_norm.join(Residual(x, self.attention(y, step)))
        return Residual(x, self.mlp(y, step.use))

    def record(self, tape: TapeRecorder, x: int, last: bool) -> int:
        """Record the layer. Behind the last one's attention only the tokens go on whose outputs are
        wanted: tokens no longer need each other."""
        assert isinstance(self.attention, SelfAttention)
        y = self.attention.record(tape, self.attention_norm.record(tape, x))
        if last:
            x, y = tape.choose(x), tape.choose(y)
        self.attention.out.record(tape, ProductInput(y), x)
        self.mlp.record(tape, self.mlp_norm.record(tape, x), x)
        return x

    def stored(self) -> list[Stored]:
        return [*self.attention.stored(), *self.mlp.stored()]

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}{self.ATTENTION}")
            | self.mlp.slots(f"{prefix}{self.MLP}")
            | self.attention_norm.slots(f"{prefix}{self.ATTENTION_NORM}")
            | self.mlp_norm.slots(f"{prefix}{self.MLP_NORM}")
        )
