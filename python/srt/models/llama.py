"""Llama (Touvron et al. 2023): a pre-norm decoder with RMSNorm, rotary embeddings, grouped-query
attention and a gated feed-forward layer."""

from __future__ import annotations

from sglang.srt.layers.mlp import FeedForward, GatedMLP
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.prenorm import PreNorm
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.self_attention import AttentionShape, SelfAttention
from sglang.srt.layers.weight import Place
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec, decoder_spec


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


class LlamaBlock(PreNorm):
    attention: SelfAttention

    def __init__(
        self,
        spec: ModelSpec,
        layer: int,
        index: int,
        place: Place,
        rotary: Rotary | None,
        mlp: FeedForward | None = None,
    ) -> None:
        """A block. ``mlp`` replaces the gated layer."""
        self.attention = SelfAttention(self.shape(spec, layer), index, place, rotary)
        self.mlp: FeedForward = mlp or GatedMLP(
            spec.hidden_size, spec.intermediate_size, spec.activation, spec.mlp_bias, place
        )
        self.attention_norm = RMSNorm(spec.hidden_size, spec.eps, place)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.eps, place)

    def shape(self, spec: ModelSpec, layer: int) -> AttentionShape:
        return attention_shape(spec, layer)


class LlamaForCausalLM(CausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        bias = config.flag("attention_bias")
        return decoder_spec(
            config, architecture, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias")
        )

    def block(self, layer: int, index: int) -> LlamaBlock:
        return LlamaBlock(self.spec, layer, index, self.place, self.rotary)
