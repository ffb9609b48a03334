"""Qwen2-MoE (Yang et al. 2024, section 2.2.2): Qwen2 with many narrow experts in some layers, and
beside them one wide expert that all tokens go through, behind a sigmoid."""

from __future__ import annotations

from sglang.srt.layers.experts import ExpertsShape
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.mixture import MixtureForCausalLM, MixtureSpec, read_routing, sparse_layers
from sglang.srt.models.model_spec import decoder_spec, extended, sliding_layers


class Qwen2MoeForCausalLM(MixtureForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> MixtureSpec:
        spec = decoder_spec(
            config, architecture, windows=_windows(config), qkv_bias=config.flag("qkv_bias", True)
        )
        experts = ExpertsShape(
            width=spec.hidden_size,
            inner=config.int("moe_intermediate_size", 1408),
            routing=read_routing(config, "num_experts", 4, config.flag("norm_topk_prob")),
            act=spec.activation,
            shared=config.int("shared_expert_intermediate_size", 5632),
            shared_gate=True,
        )
        return extended(spec, MixtureSpec, experts=experts, sparse=sparse_layers(config))


def _windows(config: Fields) -> tuple[int, ...]:
    """Not Qwen2's: without ``layer_types`` every other of the first ``max_window_layers`` layers
    slides, the first one included."""
    layers, first = config.int("num_hidden_layers"), config.int("max_window_layers", 28, low=0)
    window = config.int("sliding_window", 4096, low=0) if config.flag("use_sliding_window") else 0
    sliding = sliding_layers(config, layers, lambda i: i < first and i % 2 == 0)
    return tuple(window if slides else 0 for slides in sliding)
