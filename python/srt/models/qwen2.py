"""Qwen2 (Yang et al. 2024): Llama with biases on queries, keys and values, and a sliding window in
the upper layers of some checkpoints."""

from __future__ import annotations

from sglang.srt.models.config import Fields, ModelSpec, decoder_spec, layer_windows
from sglang.srt.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        return decoder_spec(
            config, architecture, windows=layer_windows(config), kv_heads=32, qkv_bias=True
        )
