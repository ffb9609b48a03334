"""Qwen3 (Yang et al. 2025): Llama with queries and keys normed per head, and no biases."""

from __future__ import annotations

from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, layer_windows


class Qwen3ForCausalLM(LlamaForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        bias = config.flag("attention_bias")
        return decoder_spec(
            config, architecture, windows=layer_windows(config), kv_heads=32, head_dim=128,
            qkv_bias=bias, out_bias=bias, qk_norm=True,
        )  # fmt: skip
