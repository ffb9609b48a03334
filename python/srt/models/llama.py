"""Llama (Touvron et al. 2023): a pre-norm decoder with RMSNorm, rotary embeddings, grouped-query
attention and a gated feed-forward layer.

The weights are plain tensors. A model owns a range of the layers; the first range also embeds the
tokens and the last one norms and computes logits, so a pipeline stage is a model like any other.
"""

from __future__ import annotations

import re

from torch import Tensor

from srt.attention.base import Attention, Heads
from srt.layers.embedding import Embedding
from srt.layers.linear import ColumnLinear, RowLinear
from srt.layers.mlp import GatedMLP
from srt.layers.norm import RMSNorm
from srt.layers.recorder import Recorder, Source
from srt.layers.rotary import Angles, Rotary
from srt.layers.weight import Place, Slots, Stored
from srt.models.config import Fields, ModelSpec, decoder_spec


class SelfAttention:
    """Grouped-query attention (Ainslie et al. 2023); with ``qk_norm`` queries and keys are normed
    per head before they are rotated."""

    def __init__(self, spec: ModelSpec, layer: int, index: int, place: Place) -> None:
        d, group = spec.head_dim, place.group
        self.heads = Heads(
            index=index,
            num_heads=group.share(spec.num_heads, "num_attention_heads"),
            num_kv_heads=group.share(spec.num_kv_heads, "num_key_value_heads"),
            head_dim=d,
            scale=d**-0.5,
            window=spec.windows[layer],
        )
        kv = spec.num_kv_heads * d
        parts = {"q_proj": spec.num_heads * d, "k_proj": kv, "v_proj": kv}
        self.qkv = ColumnLinear(spec.hidden_size, parts, spec.qkv_bias, place, unit=d)
        self.out = RowLinear(spec.num_heads * d, "o_proj", spec.hidden_size, spec.out_bias, place)
        self.q_norm = RMSNorm(d, spec.eps, place) if spec.qk_norm else None
        self.k_norm = RMSNorm(d, spec.eps, place) if spec.qk_norm else None
        self.split = (self.heads.num_heads, self.heads.num_kv_heads)

    def __call__(self, x: Tensor, angles: Angles, rotary: Rotary, attention: Attention) -> Tensor:
        queries, kv = self.split
        qkv = self.qkv(x).view(x.shape[0], queries + 2 * kv, -1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = qkv.split_with_sizes((queries, kv, kv), 1)
            q = rotary.rotate(self.q_norm(q), angles)
            k = rotary.rotate(self.k_norm(k), angles)
        else:
            qk, v = qkv.split_with_sizes((queries + kv, kv), 1)
            q, k = rotary.rotate(qk, angles).split_with_sizes((queries, kv), 1)
        return self.out(attention.attend(self.heads, q, k, v))

    def record(self, tape: Recorder, x: Source, rotary: Rotary) -> int:
        """All but the output projection."""
        gains = None
        if self.q_norm is not None and self.k_norm is not None:
            gains = (self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        return tape.attend(self.qkv.record(tape, x), self.heads, rotary, gains)

    def slots(self, prefix: str) -> Slots:
        out = self.qkv.slots(prefix) | self.out.slots(prefix)
        if self.q_norm is not None and self.k_norm is not None:
            out |= self.q_norm.slots(f"{prefix}q_norm.weight")
            out |= self.k_norm.slots(f"{prefix}k_norm.weight")
        return out


class Layer:
    def __init__(self, spec: ModelSpec, layer: int, index: int, place: Place) -> None:
        self.attention = SelfAttention(spec, layer, index, place)
        self.mlp = GatedMLP(
            spec.hidden_size, spec.intermediate_size, spec.activation, spec.mlp_bias, place
        )
        self.attention_norm = RMSNorm(spec.hidden_size, spec.eps, place)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.eps, place)

    def __call__(self, x: Tensor, angles: Angles, rotary: Rotary, attention: Attention) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles, rotary, attention)
        return x + self.mlp(self.mlp_norm(x))

    def record(self, tape: Recorder, x: int, rotary: Rotary, last: bool) -> int:
        """The residual stream behind the layer. Behind the last layer's attention tokens no longer
        need each other, so only those whose outputs are wanted go on."""
        y = self.attention.record(tape, self.attention_norm.record(x), rotary)
        if last:
            x, y = tape.choose(x), tape.choose(y)
        self.attention.out.record(tape, Source(y), x)
        self.mlp.record(tape, self.mlp_norm.record(x), x)
        return x

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}self_attn.")
            | self.mlp.slots(f"{prefix}mlp.")
            | self.attention_norm.slots(f"{prefix}input_layernorm.weight")
            | self.mlp_norm.slots(f"{prefix}post_attention_layernorm.weight")
        )


class LlamaForCausalLM:
    """Layers ``layers`` of the model (all of them by default)."""

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        """The spec of a checkpoint's config. Raises ValueError."""
        bias = config.flag("attention_bias")
        return decoder_spec(
            config, architecture, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias")
        )

    def __init__(
        self, spec: ModelSpec, place: Place, length: int, layers: range | None = None
    ) -> None:
        """``length``: positions to prepare rotary tables for."""
        self.spec = spec
        self.owned = range(spec.num_layers) if layers is None else layers
        self.first, self.last = self.owned.start == 0, self.owned.stop == spec.num_layers
        self.layers = [Layer(spec, n, i, place) for i, n in enumerate(self.owned)]
        self.rotary = Rotary(spec.rope, spec.head_dim, length, place.dtype, place.device)
        width = spec.hidden_size
        embeds = self.first or (self.last and spec.tied)
        self.embedding = Embedding(spec.vocab_size, width, place) if embeds else None
        self.norm = RMSNorm(width, spec.eps, place) if self.last else None
        self.head = self.embedding if spec.tied else None
        if self.last and not spec.tied:
            self.head = Embedding(spec.vocab_size, width, place)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Token ids [T] (the first range) or hidden states [T, width] -> hidden states.

        The last range's are normed, ready for ``logits``. Writes the planned KV slots.
        """
        if self.first:
            assert self.embedding is not None
            x = self.embedding(x)
        angles = self.rotary.at(positions)
        for layer in self.layers:
            x = layer(x, angles, self.rotary, attention)
        return x if self.norm is None else self.norm(x)

    def record(self, tape: Recorder) -> None:
        """``forward`` of a model that owns all layers, for the tokens whose outputs are wanted."""
        assert self.embedding is not None
        assert self.norm is not None
        x = self.embedding.record(tape)
        for layer in self.layers:
            x = layer.record(tape, x, self.rotary, last=layer is self.layers[-1])
        tape.norm(self.norm.record(x))

    def stored(self) -> list[Stored]:
        """Every layer with a matrix."""
        out: list[Stored] = [m for m in (self.embedding, self.head) if m is not None]
        for layer in self.layers:
            out += [layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down]
        return list(dict.fromkeys(out))

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states [N, width] of the last range -> [N, vocab]."""
        assert self.head is not None
        return self.head.logits(hidden)

    def slots(self) -> Slots:
        """Every checkpoint tensor that this range needs."""
        out: Slots = {}
        if self.embedding is not None:
            out |= self.embedding.slots("model.embed_tokens.weight")
        for n, layer in zip(self.owned, self.layers):
            out |= layer.slots(f"model.layers.{n}.")
        if self.norm is not None:
            out |= self.norm.slots("model.norm.weight")
        if self.head is not None and self.head is not self.embedding:
            out |= self.head.slots("lm_head.weight")
        return out

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint tensor that has no slot is known to be needless here."""
        if name.endswith(".rotary_emb.inv_freq"):
            return True
        if name == "lm_head.weight":
            return self.spec.tied or not self.last
        if name in ("model.embed_tokens.weight", "model.norm.weight"):
            return name not in self.slots()
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        others = set(range(self.spec.num_layers)) - set(self.owned)
        return layer is not None and int(layer[1]) in others
