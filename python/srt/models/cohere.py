"""Command R (Cohere 2024): attention and the feed-forward layer read the same normed states and are
added together (Wang and Komatsuzaki 2021, GPT-J); LayerNorm without bias; neighbouring dimensions
rotate; logits are scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.norm import HeadNorm, HeadsNorm, LayerNorm, RMSNorm
from sglang.srt.layers.pass_writer import PassWriter
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.self_attention import AttentionShape, SelfAttention
from sglang.srt.layers.weight import Place, Slots, Stored
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import attention_shape
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, extended
from sglang.srt.numeric.host_arrays import Weight


@dataclass(frozen=True)
class CohereSpec(ModelSpec):
    """``logits_scale``: times the products with the head."""

    logits_scale: float = 1.0


class CohereAttention(SelfAttention):
    def head_norm(self, shape: AttentionShape, heads: int, place: Place) -> HeadNorm:
        turned = 0 if self.rotary is None else self.rotary.turned
        return HeadsNorm(heads, shape.head_dim, shape.qk_eps, turned, place)


class CohereBlock:
    """``x + attention(norm(x)) + mlp(norm(x))``, both of one norm."""

    def __init__(
        self, spec: ModelSpec, layer: int, index: int, place: Place, rotary: Rotary | None
    ) -> None:
        shape = replace(attention_shape(spec, layer), pairs=True)
        self.attention = CohereAttention(shape, index, place, rotary)
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size, spec.activation, False, place)
        self.norm = LayerNorm(spec.hidden_size, spec.eps, place, bias=False)

    def write(self, w: PassWriter, last: bool) -> None:
        x = w.read(self.norm)
        y = self.attention.write(w, x)
        if last:
            y, x = w.choose(y, x)
        w.add(self.attention.out, y)
        self.mlp.write(w, x)

    def stored(self) -> list[Stored]:
        return [*self.attention.stored(), *self.mlp.stored()]

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}self_attn.")
            | self.mlp.slots(f"{prefix}mlp.")
            | self.norm.slots(f"{prefix}input_layernorm.weight")
        )


class CohereForCausalLM(CausalLM):
    spec: CohereSpec

    def final_norm(self) -> RMSNorm | LayerNorm:
        return LayerNorm(self.spec.hidden_size, self.spec.eps, self.place, bias=False)

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        config = config.assuming(rope_theta=500_000.0)
        return cohere_spec(config, architecture, qk_norm=config.flag("use_qk_norm"))

    def block(self, layer: int, index: int) -> CohereBlock:
        return CohereBlock(self.spec, layer, index, self.place, self.rotary)

    def adjust(self, scores: Weight) -> Weight:
        scores *= self.spec.logits_scale
        return scores


def cohere_spec(config: Fields, architecture: str, **more: Any) -> CohereSpec:
    """Spec of a Cohere model. ``more``: as for ``decoder_spec``."""
    config = config.assuming(tie_word_embeddings=True)
    bias, eps = config.flag("attention_bias"), config.float("layer_norm_eps", 1e-5)
    spec = decoder_spec(config, architecture, qkv_bias=bias, out_bias=bias, **more)
    scale = config.float("logit_scale", 0.0625)
    return extended(replace(spec, eps=eps), CohereSpec, logits_scale=scale)
