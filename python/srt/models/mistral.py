"""Mistral (Jiang et al. 2023): Llama with a sliding attention window in every layer."""

from __future__ import annotations

from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.model_spec import ModelSpec, decoder_spec


class MistralForCausalLM(LlamaForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        # A config without the key has the window of the first release; null means none.
        missing = 0 if "sliding_window" in config.values else 4096
        window = config.int("sliding_window", missing)
        layers = config.int("num_hidden_layers")
        return decoder_spec(config, architecture, windows=(window,) * layers, kv_heads=8)
