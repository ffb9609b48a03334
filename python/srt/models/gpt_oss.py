"""GPT-OSS (OpenAI 2025): a mixture of experts whose attention has a sink in every head, and a
window in every second layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang.srt.layers.activations import CLAMPED_SWIGLU, SWIGLU_ALPHA, SWIGLU_LIMIT
from sglang.srt.layers.experts import ExpertNames, ExpertsShape
from sglang.srt.layers.self_attention import AttentionShape
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaBlock, attention_shape
from sglang.srt.models.mixture import MixtureForCausalLM, MixtureSpec, read_routing
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, extended, sliding_layers

# Gates and what they gate stand in turns, all experts in one tensor.
NAMES = ExpertNames(router="router", fused=True)
# Default rotary embedding.
YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GptOssSpec(MixtureSpec):
    @property
    def sinks(self) -> bool:
        return True


class GptOssBlock(LlamaBlock):
    def shape(self, spec: ModelSpec, layer: int) -> AttentionShape:
        return replace(attention_shape(spec, layer), sinks=True)


class GptOssForCausalLM(MixtureForCausalLM):
    BLOCK = GptOssBlock

    @staticmethod
    def read(config: Fields, architecture: str) -> GptOssSpec:
        for key, known in (("swiglu_alpha", SWIGLU_ALPHA), ("swiglu_limit", SWIGLU_LIMIT)):
            if config.float(key, known) != known:
                raise config.error(key, f"only {known} is supported.")
        config = config.assuming(rms_norm_eps=1e-5, rope_theta=150_000.0)
        if not config.has("rope_parameters") and not config.has("rope_scaling"):
            config = config.replacing(rope_parameters=YARN)
        layers, bias = config.int("num_hidden_layers"), config.flag("attention_bias", True)
        window = config.int("sliding_window", 128)
        sliding = sliding_layers(config, layers, lambda i: i % 2 == 0)
        spec = decoder_spec(
            config, architecture, windows=tuple(window if slides else 0 for slides in sliding),
            kv_heads=8, head_dim=64, qkv_bias=bias, out_bias=bias,
        )  # fmt: skip
        experts = ExpertsShape(
            width=spec.hidden_size,
            inner=spec.intermediate_size,
            # Softmax over the chosen alone.
            routing=read_routing(config, "num_local_experts", 4, renormalise=True),
            act=CLAMPED_SWIGLU,
            bias=True,
            router_bias=True,
            names=NAMES,
        )
        return extended(spec, GptOssSpec, experts=experts, sparse=(True,) * layers)
