"""OLMo 3 (OLMo et al. 2025): OLMo 2 with a window in three of four layers; what extends the rotary
embeddings holds for the layers that see everything."""

from __future__ import annotations

from dataclasses import replace

from sglang.srt.layers.rotary import Rope
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, read_rope, sliding_layers
from sglang.srt.models.olmo2 import Olmo2ForCausalLM


def ropes(config: Fields) -> tuple[Rope, Rope]:
    """Rotary embeddings of the layers that see everything, and of those with a window. The one
    ``rope_scaling`` of older configs belongs to the former."""
    config = config.assuming(rope_theta=500_000.0)
    params = config.fields("rope_parameters")
    wide, local = (params.values.get(f"{kind}_attention") for kind in ("full", "sliding"))
    return (
        read_rope(config.replacing(rope_parameters=wide)),
        read_rope(config.replacing(rope_parameters=local, rope_scaling=None)),
    )


class Olmo3ForCausalLM(Olmo2ForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        layers, window = config.int("num_hidden_layers"), config.int("sliding_window", 4096)
        slides = sliding_layers(config, layers, lambda i: (i + 1) % 4 != 0)
        wide, local = ropes(config)
        bias = config.flag("attention_bias")
        spec = decoder_spec(
            config.replacing(rope_parameters=None, rope_scaling=None).assuming(rms_norm_eps=1e-5),
            architecture, windows=tuple(window if s else 0 for s in slides), qkv_bias=bias,
            out_bias=bias,
        )  # fmt: skip
        return replace(spec, rope=wide, local_rope=local, context_length=wide.length)
