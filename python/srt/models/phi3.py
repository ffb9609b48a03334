"""Phi-3 (Abdin et al. 2024) and Phi-4: Llama with one matrix for queries, keys and values and one
for gate and up, LongRoPE, and rotation of a part of each head in some."""

from __future__ import annotations

from dataclasses import replace

from sglang.srt.layers.linear import Fused
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.self_attention import AttentionNames, AttentionShape
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaBlock, LlamaForCausalLM
from sglang.srt.models.model_spec import ModelSpec, decoder_spec


class Phi3Block(LlamaBlock):
    def shape(self, spec: ModelSpec, layer: int) -> AttentionShape:
        return replace(super().shape(spec, layer), names=AttentionNames(fused=Fused("qkv_proj")))


class Phi3ForCausalLM(LlamaForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        window = config.int("sliding_window", 0)
        layers = config.int("num_hidden_layers")
        rope = config.fields("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
        if not rope.has("original_max_position_embeddings"):
            config = config.assuming(original_max_position_embeddings=4096)
        return decoder_spec(
            config.assuming(rms_norm_eps=1e-5), architecture, windows=(window,) * layers,
            partial_rotary=True,
        )  # fmt: skip

    def block(self, layer: int, index: int) -> Phi3Block:
        spec, place = self.spec, self.place
        mlp = GatedMLP(
            spec.hidden_size, spec.intermediate_size, spec.activation, False, place,
            fused=Fused("gate_up_proj"),
        )  # fmt: skip
        return Phi3Block(spec, layer, index, place, self.rotary, mlp)
