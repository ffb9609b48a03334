"""OLMo 2 (OLMo et al. 2024): norms stand after the sublayers instead of before them, and all heads
of q, or of k, are normed together."""

from __future__ import annotations

from dataclasses import replace

from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.pass_writer import PassWriter
from sglang.srt.layers.self_attention import AttentionShape
from sglang.srt.layers.weight import Slots
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaBlock, LlamaForCausalLM
from sglang.srt.models.model_spec import ModelSpec, decoder_spec


class Olmo2Block(LlamaBlock):
    """``x + norm(attention(x))``, then ``x + norm(mlp(x))``."""

    mlp: GatedMLP
    attention_norm: RMSNorm
    mlp_norm: RMSNorm

    def shape(self, spec: ModelSpec, layer: int) -> AttentionShape:
        return replace(super().shape(spec, layer), qk_eps=spec.eps, qk_whole=True)

    def write(self, w: PassWriter, last: bool) -> None:
        y = self.attention.write(w, w.read())
        if last:
            [y] = w.choose(y)
        w.add(self.attention.out, y, self.attention_norm)
        self.mlp.write(w, w.read(), self.mlp_norm)

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}self_attn.")
            | self.mlp.slots(f"{prefix}mlp.")
            | self.attention_norm.slots(f"{prefix}post_attention_layernorm.weight")
            | self.mlp_norm.slots(f"{prefix}post_feedforward_layernorm.weight")
        )


class Olmo2ForCausalLM(LlamaForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        bias = config.flag("attention_bias")
        return decoder_spec(
            config.assuming(rms_norm_eps=1e-5), architecture, qkv_bias=bias, out_bias=bias
        )

    def block(self, layer: int, index: int) -> Olmo2Block:
        return Olmo2Block(self.spec, layer, index, self.place, self.rotary_of(layer))
