"""Qwen2 (Yang et al. 2024): Llama with biases on queries, keys and values, and a sliding window in
the upper layers of some checkpoints."""

from __future__ import annotations

from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, layer_windows


class Qwen2ForCausalLM(LlamaForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        return decoder_spec(
            config, architecture, windows=layer_windows(config), kv_heads=32, qkv_bias=True
        )
