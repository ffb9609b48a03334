"""Command R (Cohere 2024): attention and the feed-forward layer read the same normed states and are
added together (Wang and Komatsuzaki 2021, GPT-J); LayerNorm without bias; neighbouring dimensions
rotate; logits are scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.residual import Residual
from sglang.srt.layers.rotary import Rotary, from_pairs
from sglang.srt.layers.self_attention import AttentionShape, HeadNorm, SelfAttention
from sglang.srt.layers.step import ForwardStep
from sglang.srt.layers.tape_recorder import ProductInput, TapeRecorder
from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import attention_shape
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, extended
from sglang.srt.numeric.host_arrays import Array, Weight
from sglang.srt.numeric.torch_later import F, Tensor


@dataclass(frozen=True)
class CohereSpec(ModelSpec):
    """``logits_scale``: times the products with the head."""

    logits_scale: float = 1.0


class HeadsNorm:
    """LayerNorm of each head by itself, with gains of its own."""

    def __init__(self, shape: AttentionShape, heads: int, turned: int, place: Place) -> None:
        """``turned``: the number of a head's dimensions that turn; loading reorders them."""
        self.dim, self.eps, self.turned = shape.head_dim, shape.qk_eps, turned
        self.whole, self.group = (heads, self.dim), place.group
        self.weight = place.empty(place.group.share(heads, "the heads of a norm"), self.dim)

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = F.layer_norm(x, (self.dim,), eps=self.eps) * self.weight.to(x.dtype)
        return found

    def slots(self, name: str) -> Slots:
        start = self.group.rank * self.weight.shape[0]
        return {name: Slot(self.weight, self.whole, 0, start, "gain", self._reorder)}

    def _reorder(self, gains: Array) -> Array:
        return from_pairs(gains.reshape(-1), self.dim, self.turned).reshape(self.whole)


class CohereAttention(SelfAttention):
    def head_norm(self, shape: AttentionShape, heads: int, place: Place) -> HeadNorm | None:
        if not shape.qk_eps:
            return None
        return HeadsNorm(shape, heads, 0 if self.rotary is None else self.rotary.turned, place)


class CohereBlock:
    """``x + attention(norm(x)) + mlp(norm(x))``, both of one norm."""

    def __init__(
        self, spec: ModelSpec, layer: int, index: int, place: Place, rotary: Rotary | None
    ) -> None:
        shape = replace(attention_shape(spec, layer), pairs=True)
        self.attention = CohereAttention(shape, index, place, rotary)
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size, spec.activation, False, place)
        self.norm = LayerNorm(spec.hidden_size, spec.eps, place, bias=False)

    def __call__(self, stream: Residual, step: ForwardStep) -> Residual:
        x, y = self.norm.join(stream)
        return Residual(x + self.attention(y, step), self.mlp(y, step.use))

    def record(self, tape: TapeRecorder, x: int, last: bool) -> int:
        normed = self.norm.alone(tape, x)
        y = self.attention.record(tape, ProductInput(normed))
        if last:
            x, y, normed = tape.choose(x), tape.choose(y), tape.choose(normed)
        self.attention.out.record(tape, ProductInput(y), x)
        self.mlp.record(tape, ProductInput(normed), x)
        return x

    def stored(self) -> list[Stored]:
        return [*self.attention.stored(), *self.mlp.stored()]

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}self_attn.")
            | self.mlp.slots(f"{prefix}mlp.")
            | self.norm.slots(f"{prefix}input_layernorm.weight")
        )


class CohereForCausalLM(CausalLM):
    spec: CohereSpec

    def __init__(
        self, spec: CohereSpec, place: Place, length: int, layers: range | None = None
    ) -> None:
        super().__init__(spec, place, length, layers)
        self.recordable = not spec.qk_norm  # a tape has no gains by head

    def final_norm(self) -> RMSNorm | LayerNorm:
        return LayerNorm(self.spec.hidden_size, self.spec.eps, self.place, bias=False)

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        config = config.assuming(rope_theta=500_000.0)
        return cohere_spec(config, architecture, qk_norm=config.flag("use_qk_norm"))

    def block(self, layer: int, index: int) -> CohereBlock:
        return CohereBlock(self.spec, layer, index, self.place, self.rotary)

    def adjust(self, scores: Weight) -> Weight:
        scores *= self.spec.logits_scale
        return scores


def cohere_spec(config: Fields, architecture: str, **more: Any) -> CohereSpec:
    """Spec of a Cohere model. ``more``: as for ``decoder_spec``."""
    config = config.assuming(tie_word_embeddings=True)
    bias, eps = config.flag("attention_bias"), config.float("layer_norm_eps", 1e-5)
    spec = decoder_spec(config, architecture, qkv_bias=bias, out_bias=bias, **more)
    scale = config.float("logit_scale", 0.0625)
    return extended(replace(spec, eps=eps), CohereSpec, logits_scale=scale)
