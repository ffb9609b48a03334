"""Llama (Touvron et al. 2023): a pre-norm decoder with RMSNorm, rotary embeddings, grouped-query
attention and a gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor

from srt.layers.attention import AttentionShape, SelfAttention
from srt.layers.mlp import GatedMLP
from srt.layers.norm import RMSNorm
from srt.layers.recorder import Recorder, Source
from srt.layers.rotary import Rotary
from srt.layers.step import Step
from srt.layers.weight import Place, Slots, Stored
from srt.models.causal import CausalLM
from srt.models.config import Fields, ModelSpec, decoder_spec


def attention_shape(spec: ModelSpec, layer: int) -> AttentionShape:
    return AttentionShape(
        width=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        window=spec.windows[layer],
        qkv_bias=spec.qkv_bias,
        out_bias=spec.out_bias,
        qk_eps=spec.eps if spec.qk_norm else 0.0,
    )


class LlamaBlock:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(
        self, spec: ModelSpec, layer: int, index: int, place: Place, rotary: Rotary | None
    ) -> None:
        self.attention = SelfAttention(attention_shape(spec, layer), index, place, rotary)
        self.mlp = GatedMLP(
            spec.hidden_size, spec.intermediate_size, spec.activation, spec.mlp_bias, place
        )
        self.attention_norm = RMSNorm(spec.hidden_size, spec.eps, place)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.eps, place)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attention_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))

    def record(self, tape: Recorder, x: int, last: bool) -> int:
        """Behind the last layer's attention tokens no longer need each other, so only those whose
        outputs are wanted go on."""
        y = self.attention.record(tape, self.attention_norm.record(x))
        if last:
            x, y = tape.choose(x), tape.choose(y)
        self.attention.out.record(tape, Source(y), x)
        self.mlp.record(tape, self.mlp_norm.record(x), x)
        return x

    def stored(self) -> list[Stored]:
        return [*self.attention.stored(), *self.mlp.stored()]

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}self_attn.")
            | self.mlp.slots(f"{prefix}mlp.")
            | self.attention_norm.slots(f"{prefix}input_layernorm.weight")
            | self.mlp_norm.slots(f"{prefix}post_attention_layernorm.weight")
        )


class LlamaForCausalLM(CausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        bias = config.flag("attention_bias")
        return decoder_spec(
            config, architecture, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias")
        )

    def block(self, layer: int, index: int) -> LlamaBlock:
        return LlamaBlock(self.spec, layer, index, self.place, self.rotary)
