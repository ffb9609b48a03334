"""SmolLM3 (Bakouch et al. 2025): Llama whose every fourth layer does not rotate queries and keys
(NoPE: Kazemnejad et al. 2023; interleaved with RoPE: Yang et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaBlock, LlamaForCausalLM
from sglang.srt.models.model_spec import ModelSpec, decoder_spec, extended, layer_windows


@dataclass(frozen=True)
class SmolLM3Spec(ModelSpec):
    """``rotates``: whether each layer has rotary embeddings."""

    rotates: tuple[bool, ...] = ()


def rotating_layers(config: Fields) -> tuple[bool, ...]:
    """Whether each layer rotates: ``no_rope_layers`` (1 where it does), or all but every n-th."""
    layers = config.int("num_hidden_layers")
    listed = config.values.get("no_rope_layers")
    if listed is None:
        every = config.int("no_rope_layer_interval", 4)
        return tuple((n + 1) % every != 0 for n in range(layers))
    if (
        not isinstance(listed, list)
        or len(listed) != layers
        or any(n not in (0, 1) for n in listed)
    ):
        raise config.error("no_rope_layers", f"it must list {layers} of 0 and 1.")
    return tuple(map(bool, listed))


class SmolLM3ForCausalLM(LlamaForCausalLM):
    spec: SmolLM3Spec

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        rotates, bias = rotating_layers(config), config.flag("attention_bias")
        config = config.assuming(
            tie_word_embeddings=True, rope_theta=2_000_000.0, sliding_window=None
        )
        windows = None
        if config.flag("use_sliding_window"):
            # Without a list of kinds the layers that do not rotate have the window.
            missing = ["full_attention" if r else "sliding_attention" for r in rotates]
            windows = layer_windows(config.assuming(layer_types=missing))
        spec = decoder_spec(
            config, architecture, windows=windows, kv_heads=4,
            qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias"),
        )  # fmt: skip
        return extended(spec, SmolLM3Spec, rotates=rotates)

    def block(self, layer: int, index: int) -> LlamaBlock:
        rotary = self.rotary if self.spec.rotates[layer] else None
        return LlamaBlock(self.spec, layer, index, self.place, rotary)
