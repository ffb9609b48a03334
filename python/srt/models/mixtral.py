"""Mixtral (Jiang et al. 2024): Mistral with eight experts in each feed-forward layer; every token
goes through the two that a softmax prefers."""

from __future__ import annotations

from sglang.srt.layers.experts import ExpertNames, ExpertsShape
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaBlock
from sglang.srt.models.mixture import MixtureForCausalLM, MixtureSpec, read_routing
from sglang.srt.models.model_spec import decoder_spec, extended

NAMES = ExpertNames(gate="experts.{}.w1", up="experts.{}.w3", down="experts.{}.w2")


class MixtralBlock(LlamaBlock):
    MLP = "block_sparse_moe."


class MixtralForCausalLM(MixtureForCausalLM):
    BLOCK = MixtralBlock

    @staticmethod
    def read(config: Fields, architecture: str) -> MixtureSpec:
        layers = config.int("num_hidden_layers")
        window = config.int("sliding_window", 0)  # null or absent: none
        config = config.assuming(rms_norm_eps=1e-5, rope_theta=1_000_000.0)
        spec = decoder_spec(config, architecture, windows=(window,) * layers, kv_heads=8)
        experts = ExpertsShape(
            width=spec.hidden_size,
            inner=spec.intermediate_size,
            routing=read_routing(config, "num_local_experts", 2, renormalise=True),
            act=spec.activation,
            names=NAMES,
        )
        return extended(spec, MixtureSpec, experts=experts, sparse=(True,) * layers)
