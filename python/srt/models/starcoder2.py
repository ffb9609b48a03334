"""StarCoder2 (Lozhkov et al. 2024): grouped-query attention with a sliding window and rotary
embeddings, but LayerNorm and a plain feed-forward layer, with biases throughout."""

from __future__ import annotations

from sglang.srt.layers.mlp import PlainMLP
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.prenorm import PreNorm
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.self_attention import SelfAttention
from sglang.srt.layers.weight import Place
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import attention_shape
from sglang.srt.models.model_spec import ModelSpec, decoder_spec


class StarCoder2Block(PreNorm):
    def __init__(
        self, spec: ModelSpec, layer: int, index: int, place: Place, rotary: Rotary
    ) -> None:
        width = spec.hidden_size
        self.attention = SelfAttention(attention_shape(spec, layer), index, place, rotary)
        self.mlp = PlainMLP(
            width, spec.intermediate_size, spec.activation, spec.mlp_bias, place,
            ("c_fc", "c_proj"),
        )  # fmt: skip
        self.attention_norm = LayerNorm(width, spec.eps, place)
        self.mlp_norm = LayerNorm(width, spec.eps, place)


class Starcoder2ForCausalLM(CausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        missing = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
        values = {**missing, **config.values, "rms_norm_eps": config.float("norm_epsilon", 1e-5)}
        layers, bias = config.int("num_hidden_layers"), config.flag("use_bias", True)
        window = config.int("sliding_window", 0, low=0)
        return decoder_spec(
            Fields(values, config.source), architecture, windows=(window,) * layers,
            kv_heads=2, qkv_bias=bias, out_bias=bias, mlp_bias=bias,
        )  # fmt: skip

    def final_norm(self) -> RMSNorm | LayerNorm:
        return LayerNorm(self.spec.hidden_size, self.spec.eps, self.place)

    def block(self, layer: int, index: int) -> StarCoder2Block:
        return StarCoder2Block(self.spec, layer, index, self.place, self.rotary)
