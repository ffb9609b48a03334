"""GPT-2 (Radford et al. 2019): positions are learned and added to the embedding, LayerNorm stands
before each sublayer, and the feed-forward layer is plain."""

from __future__ import annotations

from typing import ClassVar

from sglang.srt.layers.linear import Fused
from sglang.srt.layers.mlp import PlainMLP
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.pass_writer import PassWriter
from sglang.srt.layers.prenorm import PreNorm
from sglang.srt.layers.self_attention import AttentionNames, AttentionShape, SelfAttention
from sglang.srt.layers.weight import Place, Slot, Slots
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec, decoder_spec

NAMES = AttentionNames(out="c_proj", fused=Fused("c_attn", transposed=True), transposed=True)
# GPT-2's own names of config keys, and ours.
RENAMED = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings", "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}  # fmt: skip


class GPT2Block(PreNorm):
    ATTENTION, ATTENTION_NORM, MLP_NORM = "attn.", "ln_1.weight", "ln_2.weight"

    def __init__(self, spec: ModelSpec, index: int, place: Place) -> None:
        width = spec.hidden_size
        shape = AttentionShape(
            width=width, num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim, qkv_bias=True, out_bias=True, names=NAMES,
        )  # fmt: skip
        self.attention = SelfAttention(shape, index, place, None)
        self.mlp = PlainMLP(
            width, spec.intermediate_size, spec.activation, True, place, ("c_fc", "c_proj"),
            transposed=True,
        )  # fmt: skip
        self.attention_norm = LayerNorm(width, spec.eps, place)
        self.mlp_norm = LayerNorm(width, spec.eps, place)


class GPT2LMHeadModel(CausalLM):
    PREFIX: ClassVar[str] = "transformer."
    EMBEDDING = "transformer.wte.weight"
    POSITIONS: ClassVar[str] = "transformer.wpe.weight"
    LAYERS = "transformer.h."
    NORM = "transformer.ln_f.weight"
    BUFFERS = (".attn.bias", ".attn.masked_bias")

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
            if config.flag(key):
                raise config.error(key, "only false is supported.")
        if not config.flag("scale_attn_weights", True):
            raise config.error("scale_attn_weights", "only true is supported.")
        values = {RENAMED.get(key, key): value for key, value in config.values.items()}
        width = Fields(values, config.source).int("hidden_size", 768)
        missing = {
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "max_position_embeddings": 1024, "hidden_act": "gelu_new", "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        }  # fmt: skip
        values = {**missing, **values, "intermediate_size": values.get("n_inner") or 4 * width}
        return decoder_spec(Fields(values, config.source), architecture)

    def __init__(
        self, spec: ModelSpec, place: Place, length: int, layers: range | None = None
    ) -> None:
        super().__init__(spec, place, length, layers)
        shape = (spec.context_length, spec.hidden_size)
        self.positions = place.empty(*shape) if self.first else None

    def final_norm(self) -> RMSNorm | LayerNorm:
        return LayerNorm(self.spec.hidden_size, self.spec.eps, self.place)

    def block(self, layer: int, index: int) -> GPT2Block:
        return GPT2Block(self.spec, index, self.place)

    def write_embedding(self, w: PassWriter) -> None:
        super().write_embedding(w)
        w.add_positions(self.positions)

    def slots(self) -> Slots:
        out = super().slots()
        if self.positions is not None:
            out[self.POSITIONS] = Slot(self.positions, tuple(self.positions.shape))
        return out

    def ignores(self, name: str) -> bool:
        return super().ignores(name) or (name == self.POSITIONS and self.positions is None)
