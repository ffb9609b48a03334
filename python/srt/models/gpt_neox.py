"""GPT-NeoX (Black et al. 2022) and Pythia: attention and the feed-forward layer read the same
stream side by side, and a part of each head is rotated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sglang.srt.layers.linear import Fused
from sglang.srt.layers.mlp import PlainMLP
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.pass_writer import PassWriter
from sglang.srt.layers.prenorm import PreNorm
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.self_attention import AttentionNames, AttentionShape, SelfAttention
from sglang.srt.layers.weight import Place
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, extended
from sglang.srt.numeric.host_arrays import Array

# GPT-NeoX's own names of config keys, and ours.
RENAMED = {
    "rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta",
    "layer_norm_eps": "rms_norm_eps",
}  # fmt: skip


@dataclass(frozen=True)
class NeoXSpec(ModelSpec):
    """``parallel``: both sublayers read the stream before either adds to it."""

    parallel: bool = True


class NeoXBlock(PreNorm):
    ATTENTION = "attention."
    attention: SelfAttention

    def __init__(
        self, spec: NeoXSpec, index: int, place: Place, rotary: Rotary, fused: Fused
    ) -> None:
        width = spec.hidden_size
        shape = AttentionShape(
            width=width, num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim, qkv_bias=spec.qkv_bias, out_bias=spec.out_bias,
            names=AttentionNames(out="dense", fused=fused),
        )  # fmt: skip
        self.parallel = spec.parallel
        self.attention = SelfAttention(shape, index, place, rotary)
        self.mlp = PlainMLP(
            width, spec.intermediate_size, spec.activation, True, place,
            ("dense_h_to_4h", "dense_4h_to_h"),
        )  # fmt: skip
        self.attention_norm = LayerNorm(width, spec.eps, place)
        self.mlp_norm = LayerNorm(width, spec.eps, place)

    def write(self, w: PassWriter, last: bool) -> None:
        y = self.attention.write(w, w.read(self.attention_norm))
        if last:
            [y] = w.choose(y)
        if not self.parallel:
            w.add(self.attention.out, y)
        self.mlp.write(w, w.read(self.mlp_norm))
        if self.parallel:
            w.add(self.attention.out, y)


class GPTNeoXForCausalLM(CausalLM):
    PREFIX = "gpt_neox."
    EMBEDDING = "gpt_neox.embed_in.weight"
    LAYERS = "gpt_neox.layers."
    NORM = "gpt_neox.final_layer_norm.weight"
    HEAD = "embed_out.weight"
    ALIASES: ClassVar[dict[str, str]] = {"lm_head.weight": "embed_out.weight"}
    BUFFERS = (".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
    spec: NeoXSpec

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        values = {RENAMED.get(key, key): value for key, value in config.values.items()}
        values.setdefault("hidden_act", "gelu")
        values.setdefault("rms_norm_eps", 1e-5)
        values.setdefault("partial_rotary_factor", 0.25)
        bias = config.flag("attention_bias", True)
        spec = decoder_spec(
            Fields(values, config.source), architecture, qkv_bias=bias, out_bias=bias,
            partial_rotary=True,
        )  # fmt: skip
        return extended(spec, NeoXSpec, parallel=config.flag("use_parallel_residual", True))

    def final_norm(self) -> RMSNorm | LayerNorm:
        return LayerNorm(self.spec.hidden_size, self.spec.eps, self.place)

    def block(self, layer: int, index: int) -> NeoXBlock:
        fused = Fused("query_key_value", self._by_kind)
        return NeoXBlock(self.spec, index, self.place, self.rotary, fused)

    def _by_kind(self, rows: Array) -> Array:
        """Head after head, each with its q, k and v -> all q, all k, all v."""
        spec = self.spec
        by_head = rows.reshape(spec.num_heads, 3, spec.head_dim, *rows.shape[1:])
        found: Array = by_head.swapaxes(0, 1).reshape(rows.shape)
        return found
