"""OLMoE (Muennighoff et al. 2024): Llama with 64 narrow experts a layer, and all heads of q, or of
k, normed together (section 2)."""

from __future__ import annotations

from dataclasses import replace

from sglang.srt.layers.experts import ExpertsShape
from sglang.srt.layers.self_attention import AttentionShape
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaBlock
from sglang.srt.models.mixture import MixtureForCausalLM, MixtureSpec, read_routing
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, extended


class OlmoeBlock(LlamaBlock):
    def shape(self, spec: ModelSpec, layer: int) -> AttentionShape:
        return replace(super().shape(spec, layer), qk_eps=spec.eps, qk_whole=True)


class OlmoeForCausalLM(MixtureForCausalLM):
    BLOCK = OlmoeBlock

    @staticmethod
    def read(config: Fields, architecture: str) -> MixtureSpec:
        if config.has("clip_qkv"):
            raise config.error("clip_qkv", "only null is supported.")
        bias = config.flag("attention_bias")
        spec = decoder_spec(
            config.assuming(rms_norm_eps=1e-5), architecture, qkv_bias=bias, out_bias=bias
        )
        experts = ExpertsShape(
            width=spec.hidden_size,
            inner=spec.intermediate_size,
            routing=read_routing(config, "num_experts", 8, config.flag("norm_topk_prob")),
            act=spec.activation,
        )
        return extended(spec, MixtureSpec, experts=experts, sparse=(True,) * spec.num_layers)
