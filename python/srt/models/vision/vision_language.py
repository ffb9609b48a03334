"""VisionLanguageModel: a text model of the registry with a vision tower before it.

What differs between families is the tower and what is made of its hidden states (``encode``). All
else is the text model's: its layers, its cache, its tape.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from sglang.srt.attention.attention_protocol import KVShape
from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.layers.pass_writer import PassWriter, Value
from sglang.srt.layers.torch_writer import TorchOperations
from sglang.srt.layers.weight import LayerWeights, Place, Slots, Stored
from sglang.srt.media.processor_settings import Norms
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.decoder_model import Block, DecoderModel
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.mistral import MistralForCausalLM
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.models.qwen2 import Qwen2ForCausalLM
from sglang.srt.models.vision.tower_layers import plain
from sglang.srt.numeric.host_arrays import Weight
from sglang.srt.numeric.torch_later import Tensor

TEXT, HEAD = "model.language_model.", "lm_head."


@dataclass(frozen=True, kw_only=True)
class VisionLanguageSpec(ModelSpec):
    """The spec of the text model; a family's own class adds the tower's."""

    text: ModelSpec

    @property
    def kv(self) -> KVShape:
        return self.text.kv

    @property
    def sinks(self) -> bool:
        return self.text.sinks


class VisionLanguageModel:
    """Implements ``models.decoder_model.DecoderModel``, which documents the methods.

    Weights go by the names of newer checkpoints; ``RENAMED`` says what older ones call them.
    """

    sections: ClassVar[bool] = False
    multimodal: ClassVar[bool] = True
    LAYERS: ClassVar[str] = f"{TEXT}layers."
    RENAMED: ClassVar[tuple[tuple[str, str], ...]] = ()
    spec: VisionLanguageSpec

    def __init__(
        self, spec: VisionLanguageSpec, place: Place, length: int, layers: range | None = None
    ) -> None:
        self.spec, self.place = spec, place
        self.words = TorchOperations(place.operations)
        self.text = cast(type[CausalLM], self.family(spec))(spec.text, place, length, layers)
        self.layers = self.text.layers  # adapters change these
        self.owned = self.text.owned
        self.embedding, self.head = self.text.embedding, self.text.head
        self.first, self.last = self.text.first, self.text.last
        first = self.first
        self.parts: dict[str, LayerWeights] = self.vision_parts() if first else {}
        plain(self._vision_stored())

    @staticmethod
    def family(spec: VisionLanguageSpec) -> type[DecoderModel]:
        """The text model's class."""
        return TEXT_FAMILIES[spec.text.architecture]

    @abstractmethod
    def vision_parts(self) -> dict[str, LayerWeights]:
        """The towers and projectors before the text model, by the prefixes of their weights."""

    @abstractmethod
    def encode(self, media: MediaSpan) -> Tensor:
        """Hidden states of a medium. See ``DecoderModel.encode``."""

    def write(self, w: PassWriter) -> Value:
        return self.text.write(w)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.text.logits(hidden)

    def adjust(self, scores: Weight) -> Weight:
        return self.text.adjust(scores)

    def adaptable(self) -> list[tuple[str, Block]]:
        return []

    def _vision_stored(self) -> list[Stored]:
        return [layer for part in self.parts.values() for layer in part.stored()]

    def stored(self) -> list[Stored]:
        return [*self.text.stored(), *self._vision_stored()]

    def slots(self) -> Slots:
        out = {_outer(name): slot for name, slot in self.text.slots().items()}
        for prefix, part in self.parts.items():
            out |= part.slots(prefix)
        return out

    @classmethod
    def names(cls, given: Iterable[str]) -> dict[str, str]:
        out = {}
        for name in given:
            new = name
            for pattern, ours in cls.RENAMED:
                new = re.sub(pattern, ours, new)
            out[new] = name
        return out

    def ignores(self, name: str) -> bool:
        inner = _inner(name)
        if inner:
            return self.text.ignores(inner)
        # A tower's layers after the last one that is read; the whole tower on other ranks.
        return (name.startswith("model.") and not self.parts) or self.needless(name)

    def needless(self, name: str) -> bool:
        """Whether a tensor before the text model's is known to be of no use here."""
        return False


def _outer(name: str) -> str:
    """Name of the text model's tensor in the whole model."""
    return name if name.startswith(HEAD) else TEXT + name.removeprefix("model.")


def _inner(name: str) -> str:
    """The text model's own name, "" for what is not the text model's."""
    if name.startswith(HEAD):
        return name
    return "model." + name.removeprefix(TEXT) if name.startswith(TEXT) else ""


def norms_of(config: Fields) -> Norms:
    """Normalisation in the files beside a ``config.json``."""
    return Norms.of(Path(config.source).parent)


S = TypeVar("S", bound=VisionLanguageSpec)


def vision_language_spec(
    config: Fields, architecture: str, text: ModelSpec, family: type[S], **more: Any
) -> S:
    """``text`` with what a family says of its tower."""
    shared = {f.name: getattr(text, f.name) for f in fields(ModelSpec)}
    return family(**{**shared, **more, "architecture": architecture, "text": text})


TEXT_FAMILIES: dict[str, type[CausalLM]] = {
    family.__name__: family for family in (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)
}
# Defaults of the text model, by ``model_type``: ``text_config`` leaves out such values.
MISSING: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaForCausalLM",
        {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
         "eos_token_id": 2},
    ),
    "mistral": (
        "MistralForCausalLM",
        {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "max_position_embeddings": 131072, "eos_token_id": 2},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
         "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 32768},
    ),
}  # fmt: skip


def text_spec(config: Fields) -> ModelSpec:
    """Spec of a ``text_config``. Raises ValueError for a text model that is not in ``MISSING``."""
    inner = config.fields("text_config")
    kind = inner.text("model_type", "llama")
    if kind not in MISSING:
        raise inner.error("model_type", f"supported are {', '.join(MISSING)}.")
    architecture, missing = MISSING[kind]
    values = {**missing, **inner.values}
    lift(config, values)
    return TEXT_FAMILIES[architecture].read(Fields(values, inner.source), architecture)


def lift(config: Fields, values: dict[str, Any]) -> None:
    """Copy the values of the whole config that concern the text model into ``values``."""
    for key in ("dtype", "torch_dtype", "eos_token_id"):
        if config.has(key):
            values[key] = config.values[key]
    tied = "tie_word_embeddings"
    values[tied] = config.flag(tied) or Fields(values, config.source).flag(tied)
