"""Command R7B and Command A (Cohere 2025): three layers with a window, which rotate queries and
keys, to one that sees everything and does not."""

from __future__ import annotations

from sglang.srt.models.cohere import CohereBlock, CohereForCausalLM, cohere_spec
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec, sliding_layers


class Cohere2ForCausalLM(CohereForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        layers, window = config.int("num_hidden_layers"), config.int("sliding_window", 4096)
        every = config.int("sliding_window_pattern", 4)
        slides = sliding_layers(config, layers, lambda i: (i + 1) % every != 0)
        windows = tuple(window if s else 0 for s in slides)
        return cohere_spec(config, architecture, windows=windows)

    def block(self, layer: int, index: int) -> CohereBlock:
        rotary = self.rotary if self.spec.windows[layer] else None
        return CohereBlock(self.spec, layer, index, self.place, rotary)
