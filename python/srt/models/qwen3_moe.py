"""Qwen3-MoE (Yang et al. 2025): Qwen3 with many narrow experts in most layers, and none shared."""

from __future__ import annotations

from sglang.srt.layers.experts import ExpertsShape
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.mixture import MixtureForCausalLM, MixtureSpec, read_routing, sparse_layers
from sglang.srt.models.model_spec import decoder_spec, extended


class Qwen3MoeForCausalLM(MixtureForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> MixtureSpec:
        bias, layers = config.flag("attention_bias"), config.int("num_hidden_layers")
        missing = 0 if "sliding_window" in config.values else 4096  # null: none
        slides = config.flag("use_sliding_window")
        window = config.int("sliding_window", missing, low=0) if slides else 0
        spec = decoder_spec(
            config, architecture, windows=(window,) * layers, kv_heads=4,
            qkv_bias=bias, out_bias=bias, qk_norm=True,
        )  # fmt: skip
        experts = ExpertsShape(
            width=spec.hidden_size,
            inner=config.int("moe_intermediate_size", 768),
            routing=read_routing(config, "num_experts", 8, config.flag("norm_topk_prob")),
            act=spec.activation,
        )
        return extended(spec, MixtureSpec, experts=experts, sparse=sparse_layers(config))
