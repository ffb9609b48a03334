"""Gemma 2 (Gemma Team 2024): every second layer sees a window, scores and logits are soft-capped,
and what a sublayer adds to the residual stream is normed too."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.layers.activations import TEXT
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.pass_writer import PassWriter
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.self_attention import AttentionShape, SelfAttention
from sglang.srt.layers.weight import Place, Slots, Stored
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import (
    ModelSpec,
    decoder_spec,
    extended,
    read_activation,
    sliding_layers,
)
from sglang.srt.numeric.host_arrays import Weight, tanh


@dataclass(frozen=True)
class GemmaSpec(ModelSpec):
    """Sizes and factors of a Gemma 2 model.

    Attributes:
        scale: factor of the attention scores, ``query_pre_attn_scalar ** -0.5``.
        score_cap, logit_cap: ``cap * tanh(x / cap)``; 0: none.
    """

    scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0


def gemma_spec(config: Fields, architecture: str, every: int) -> GemmaSpec:
    """Spec of a Gemma 2 model. ``every``: without ``layer_types`` the last of so many layers sees
    everything."""
    if config.flag("use_bidirectional_attention"):
        raise config.error("use_bidirectional_attention", "only causal attention is supported.")
    layers, window = config.int("num_hidden_layers"), config.int("sliding_window", 4096)
    slides = sliding_layers(config, layers, lambda i: (i + 1) % every != 0)
    act = read_activation(config, "hidden_activation", "gelu_pytorch_tanh", TEXT)
    tied = {"tie_word_embeddings": True, **config.values, "hidden_act": act}
    spec = decoder_spec(
        Fields(tied, config.source), architecture, kv_heads=4, head_dim=256,
        windows=tuple(window if s else 0 for s in slides),
        qkv_bias=config.flag("attention_bias"), out_bias=config.flag("attention_bias"),
    )  # fmt: skip
    return extended(
        spec, GemmaSpec,
        scale=config.float("query_pre_attn_scalar", 256.0, low=1e-6) ** -0.5,
        score_cap=config.float("attn_logit_softcapping", 0.0),
        logit_cap=config.float("final_logit_softcapping", 0.0),
    )  # fmt: skip


def gain(spec: ModelSpec, place: Place) -> RMSNorm:
    """Gemma's norm; a checkpoint has what its gain is more than 1."""
    return RMSNorm(spec.hidden_size, spec.eps, place, above=1.0)


class GemmaBlock:
    """``x + norm(attention(norm(x)))``, then ``x + norm(mlp(norm(x)))``."""

    def __init__(
        self, spec: GemmaSpec, layer: int, index: int, place: Place, rotary: Rotary
    ) -> None:
        shape = AttentionShape(
            width=spec.hidden_size, num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim, scale=spec.scale, window=spec.windows[layer],
            soft_cap=spec.score_cap, qkv_bias=spec.qkv_bias, out_bias=spec.out_bias,
            qk_eps=spec.eps if spec.qk_norm else 0.0, qk_above=1.0,
        )  # fmt: skip
        self.attention = SelfAttention(shape, index, place, rotary)
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size, spec.activation, False, place)
        self.before_attention, self.behind_attention = gain(spec, place), gain(spec, place)
        self.before_mlp, self.behind_mlp = gain(spec, place), gain(spec, place)

    def write(self, w: PassWriter, last: bool) -> None:
        y = self.attention.write(w, w.read(self.before_attention))
        if last:
            [y] = w.choose(y)
        w.add(self.attention.out, y, self.behind_attention)
        self.mlp.write(w, w.read(self.before_mlp), self.behind_mlp)

    def stored(self) -> list[Stored]:
        return [*self.attention.stored(), *self.mlp.stored()]

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}self_attn.")
            | self.mlp.slots(f"{prefix}mlp.")
            | self.before_attention.slots(f"{prefix}input_layernorm.weight")
            | self.behind_attention.slots(f"{prefix}post_attention_layernorm.weight")
            | self.before_mlp.slots(f"{prefix}pre_feedforward_layernorm.weight")
            | self.behind_mlp.slots(f"{prefix}post_feedforward_layernorm.weight")
        )


class Gemma2ForCausalLM(CausalLM):
    spec: GemmaSpec

    def final_norm(self) -> RMSNorm | LayerNorm:
        return gain(self.spec, self.place)

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        config = config.assuming(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
        return gemma_spec(config, architecture, every=2)

    def block(self, layer: int, index: int) -> GemmaBlock:
        return GemmaBlock(self.spec, layer, index, self.place, self.rotary_of(layer))

    @property
    def embedding_scale(self) -> float:
        """The root of the width, rounded to the dtype of the states."""
        return self.place.rounded(self.spec.hidden_size**0.5)

    def adjust(self, scores: Weight) -> Weight:
        cap = self.spec.logit_cap
        if cap:
            scores /= cap
            scores = tanh(scores)
            scores *= cap
        return scores
