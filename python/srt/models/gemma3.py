"""Gemma 3 (Gemma Team 2025), its text models: five layers with a window to one that sees all, each
kind with rotary embeddings of its own; heads of q and k are normed in place of soft caps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from sglang.srt.layers.rotary import Rope
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.gemma2 import Gemma2ForCausalLM, gemma_spec
from sglang.srt.models.model_spec import ModelSpec, read_rope


def ropes(config: Fields) -> tuple[Rope, Rope]:
    """Rotary embeddings of the layers that see everything, and of those with a window."""
    params = config.fields("rope_parameters")
    found = []
    for kind in ("full_attention", "sliding_attention"):
        values = dict(config.values)
        if kind == "sliding_attention":
            values["rope_theta"] = config.float("rope_local_base_freq", 10000.0, low=1.0)
            values["rope_scaling"] = None
        else:
            values.setdefault("rope_theta", 1_000_000.0)
        if params.has(kind):
            values["rope_parameters"] = params.fields(kind).values
        elif kind == "sliding_attention":
            values["rope_parameters"] = None
        values.setdefault("max_position_embeddings", 131072)
        found.append(read_rope(Fields(values, config.source)))
    return found[0], found[1]


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        wide, local = ropes(config)
        plain = {**config.values, "rope_parameters": None, "rope_scaling": None}
        every = config.int("sliding_window_pattern", config.int("_sliding_window_pattern", 6))
        spec = gemma_spec(Fields(plain, config.source), architecture, every)
        return replace(spec, rope=wide, local_rope=local, context_length=wide.length, qk_norm=True)


class Gemma3ForConditionalGeneration(Gemma3ForCausalLM):
    """The text model of a checkpoint that also has a vision tower. The tower is not read: among
    themselves, image tokens would attend to what comes after them. Prompts with images are refused.
    """

    # Prefixes of a checkpoint and ours: now, and before transformers 4.52.
    TEXT: ClassVar[dict[str, str]] = {"model.language_model.": "model.", "language_model.": ""}
    UNREAD = (
        "vision_tower.", "multi_modal_projector.",
        "model.vision_tower.", "model.multi_modal_projector.",
    )  # fmt: skip

    @classmethod
    def names(cls, given: Iterable[str]) -> dict[str, str]:
        names = {}
        for name in given:
            prefix = next(filter(name.startswith, cls.TEXT), "")
            names[cls.TEXT.get(prefix, "") + name.removeprefix(prefix)] = name
        return names

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        text = config.fields("text_config")
        # Early checkpoints leave out of the text part what is as in Gemma3TextConfig.
        outer = {key: config.values.get(key) for key in ("eos_token_id", "dtype", "torch_dtype")}
        missing = {
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "vocab_size": 262208, "max_position_embeddings": 131072,
        }  # fmt: skip
        values = {**missing, **outer, **{k: v for k, v in text.values.items() if v is not None}}
        if outer["eos_token_id"] is not None:  # read_config puts there what generate() stops at
            values["eos_token_id"] = outer["eos_token_id"]
        return Gemma3ForCausalLM.read(Fields(values, text.source), architecture)

    def ignores(self, name: str) -> bool:
        return name.startswith(self.UNREAD) or super().ignores(name)
