"""Granite (IBM 2024): Llama with multipliers, those of maximal update parametrisation (Yang et al.
2022): of the embedding, of the scores, of what each sublayer adds, and of the logits.

Norms do not see how long a vector is, so the residual stream is kept divided by the multiplier of
what is added to it, and sublayers add what they compute: ``x / m + f(norm(x))``. Only the embedding
and the epsilon of the norms know of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang.srt.layers.self_attention import AttentionShape
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaBlock, LlamaForCausalLM
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, extended
from sglang.srt.numeric.host_arrays import Weight


@dataclass(frozen=True)
class GraniteSpec(ModelSpec):
    """Sizes and factors of a Granite model. Its hidden states are kept divided by the residual
    multiplier, so that layers add to them without a factor.

    Attributes:
        eps: epsilon of the norms, divided by the residual multiplier's square.
        embedding_scale: factor of a token's embedding, divided by the residual multiplier.
        attention_scale: factor of the attention scores.
        logits_scale: factor of the logits.
    """

    embedding_scale: float = 1.0
    attention_scale: float = 1.0
    logits_scale: float = 1.0


class GraniteBlock(LlamaBlock):
    def shape(self, spec: ModelSpec, layer: int) -> AttentionShape:
        assert isinstance(spec, GraniteSpec)
        return replace(super().shape(spec, layer), scale=spec.attention_scale)


class GraniteForCausalLM(LlamaForCausalLM):
    spec: GraniteSpec

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        bias = config.flag("attention_bias")
        spec = decoder_spec(
            config, architecture, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias")
        )
        residual = config.float("residual_multiplier", 1.0, low=1e-6)
        return extended(
            replace(spec, eps=spec.eps / residual**2), GraniteSpec,
            embedding_scale=config.float("embedding_multiplier", 1.0, low=1e-6) / residual,
            attention_scale=config.float("attention_multiplier", 1.0, low=1e-6),
            logits_scale=1 / config.float("logits_scaling", 1.0, low=1e-6),
        )  # fmt: skip

    @property
    def embedding_scale(self) -> float:
        return self.spec.embedding_scale

    def block(self, layer: int, index: int) -> GraniteBlock:
        return GraniteBlock(self.spec, layer, index, self.place, self.rotary)

    def adjust(self, scores: Weight) -> Weight:
        scores *= self.spec.logits_scale
        return scores
