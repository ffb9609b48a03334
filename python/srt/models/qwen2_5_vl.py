"""Qwen2.5-VL (Bai et al. 2025): Qwen2.5 with token positions in time, height and width, and
a vision tower with windows that reads pictures and videos at their own resolution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.layers.rotary import SectionedRotary
from sglang.srt.layers.weight import LayerWeights
from sglang.srt.media.processor_settings import Norms
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.models.llama import LlamaBlock
from sglang.srt.models.model_spec import ModelSpec, extended
from sglang.srt.models.qwen2 import Qwen2ForCausalLM
from sglang.srt.models.vision.tower_layers import pixels, whole
from sglang.srt.models.vision.vision_language import (
    VisionLanguageModel,
    VisionLanguageSpec,
    lift,
    norms_of,
    vision_language_spec,
)
from sglang.srt.models.vision.windows import WindowTower, WindowTowerSpec
from sglang.srt.numeric.torch_later import Tensor

TOWER = "model.visual."


@dataclass(frozen=True, kw_only=True)
class SectionedSpec(ModelSpec):
    """``sections``: pairs of a head's dimensions that turn by time, height and width."""

    sections: tuple[int, int, int]


class SectionedQwen2(Qwen2ForCausalLM):
    """The text model of Qwen2.5-VL."""

    spec: SectionedSpec

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        key = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
        rope = config.fields(key)
        sections = rope.values.get("mrope_section", [16, 24, 24])
        good = isinstance(sections, list) and len(sections) == 3
        if not good or any(type(n) is not int or n < 1 for n in sections):
            raise rope.error("mrope_section", "it must list three numbers above 0.")
        # "mrope" is how older configs say that there are sections.
        kind = {k: "default" for k in ("type", "rope_type") if rope.values.get(k) == "mrope"}
        values = {"rope_theta": 1e6, **config.values, key: {**rope.values, **kind}}
        spec = Qwen2ForCausalLM.read(Fields(values, config.source), architecture)
        if 2 * sum(sections) != spec.head_dim:
            raise rope.error("mrope_section", f"they must add up to half of {spec.head_dim}.")
        return extended(spec, SectionedSpec, sections=tuple(sections))

    @cached_property
    def sectioned(self) -> SectionedRotary:
        place, length = self.place, self.rotary.length
        return SectionedRotary(
            self.spec.rope, self.spec.sections, length, place.states, place.device
        )

    def block(self, layer: int, index: int) -> LlamaBlock:
        return LlamaBlock(self.spec, layer, index, self.place, self.sectioned)


@dataclass(frozen=True, kw_only=True)
class QwenVLSpec(VisionLanguageSpec):
    tower: WindowTowerSpec
    norms: Norms


class Qwen2_5_VLForConditionalGeneration(VisionLanguageModel):
    sections = True
    spec: QwenVLSpec
    RENAMED: ClassVar = (
        (r"^model\.(?!language_model\.|visual\.)", "model.language_model."),
        (r"^visual\.", TOWER),
    )

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        # Published configs have the text model's settings among the whole's.
        inner = config.fields("text_config") if config.has("text_config") else config
        values: dict[str, Any] = {"max_position_embeddings": 32768, **inner.values}
        lift(config, values)
        text = SectionedQwen2.read(Fields(values, inner.source), architecture)
        tower = WindowTowerSpec.of(config.fields("vision_config"), text.hidden_size)
        return vision_language_spec(
            config, architecture, text, QwenVLSpec, tower=tower, norms=norms_of(config)
        )

    @staticmethod
    def family(spec: VisionLanguageSpec) -> type[DecoderModel]:
        return SectionedQwen2

    def vision_parts(self) -> dict[str, LayerWeights]:
        self.tower = WindowTower(self.spec.tower, whole(self.place))
        return {TOWER: self.tower}

    def encode(self, media: MediaSpan) -> Tensor:
        return self.tower.write(self.words, pixels(media, self.spec.norms, self.place))
