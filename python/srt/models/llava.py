"""LLaVA-1.5 (Liu et al. 2023, "Improved baselines with visual instruction tuning"): the patches of
an image, as CLIP sees them one layer before its last, projected into the text model's width."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.layers.weight import LayerWeights
from sglang.srt.media.processor_settings import Norms, Settings
from sglang.srt.media.tiles import Squares
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec, read_activation
from sglang.srt.models.vision.tower_layers import Projector, pixels, whole
from sglang.srt.models.vision.vision_language import (
    VisionLanguageModel,
    VisionLanguageSpec,
    norms_of,
    text_spec,
    vision_language_spec,
)
from sglang.srt.models.vision.vit import TowerSpec, ViT
from sglang.srt.numeric.torch_later import Tensor

TOWER, PROJECTOR = "model.vision_tower.", "model.multi_modal_projector."


@dataclass(frozen=True, kw_only=True)
class LlavaSpec(VisionLanguageSpec):
    """Sizes and settings of a LLaVA model.

    Attributes:
        wanted: number of the vision tower's layers after which hidden states are taken.
        squares: which hidden states of a square are used.
        norms: normalisation of the pixels.
        projector: activation of the projector.
    """

    tower: TowerSpec
    wanted: tuple[int, ...]
    squares: Squares
    norms: Norms
    projector: str
    projector_bias: bool


def llava_spec(config: Fields, architecture: str, squares: Squares, layer: int = -2) -> LlavaSpec:
    """``layer``: the hidden states taken where the config does not say."""
    tower = TowerSpec.of(config.fields("vision_config"))
    return vision_language_spec(
        config,
        architecture,
        text_spec(config),
        LlavaSpec,
        tower=tower,
        wanted=_wanted(config, tower.layers, layer),
        squares=squares,
        norms=norms_of(config),
        projector=read_activation(config, "projector_hidden_act", "gelu"),
        projector_bias=config.flag("multimodal_projector_bias", True),
    )


def _wanted(config: Fields, layers: int, missing: int) -> tuple[int, ...]:
    """Hidden states are numbered from the embeddings', 0, to the last layer's, or from behind."""
    value = config.values.get("vision_feature_layer")
    numbers = [missing if value is None else value] if not isinstance(value, list) else value
    out = []
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise config.error("vision_feature_layer", "it must be integers.")
        if not -layers - 1 <= number <= layers:
            raise config.error("vision_feature_layer", f"the tower has {layers} layers.")
        out.append(number % (layers + 1))
    if not out:
        raise config.error("vision_feature_layer", "it must name a layer.")
    return tuple(out)


class LlavaForConditionalGeneration(VisionLanguageModel):
    spec: LlavaSpec
    RENAMED: ClassVar = (
        (r"^language_model\.lm_head\.", "lm_head."),
        (r"^language_model\.model\.", "model.language_model."),
        (r"^(vision_tower|multi_modal_projector|image_newline|vision_resampler)\b", r"model.\1"),
        (r"^model\.vision_tower\.vision_model\.", TOWER),
    )

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        squares = Squares.of(Settings(config.values, config.source))
        return llava_spec(config, architecture, squares)

    def vision_parts(self) -> dict[str, LayerWeights]:
        spec, place = self.spec, whole(self.place)
        self.tower = ViT(spec.tower, spec.wanted, place)
        width = spec.hidden_size
        sizes = (spec.tower.width * len(spec.wanted), width, width)
        names = ("linear_1", "linear_2")
        self.projector = Projector(sizes, spec.projector, spec.projector_bias, names, place)
        return {TOWER: self.tower, PROJECTOR: self.projector}

    def needless(self, name: str) -> bool:
        if name.startswith((f"{TOWER}post_layernorm.", f"{TOWER}head.")):
            return True
        if name == f"{TOWER}embeddings.position_ids":  # a buffer that old releases saved
            return True
        layer = re.match(rf"{re.escape(TOWER)}encoder\.layers\.(\d+)\.", name)
        return layer is not None and max(self.spec.wanted) <= int(layer[1]) < self.spec.tower.layers

    def features(self, media: MediaSpan) -> Tensor:
        """Hidden states of each square that count [N, features, tower's width]."""
        seen = self.tower.write(self.words, pixels(media, self.spec.norms, self.place))
        return seen[:, self.spec.squares.skip :]

    def project(self, x: Tensor) -> Tensor:
        """[N, features, tower's width] -> [N, features, width]."""
        return self.projector.write(self.words, x.flatten(0, 1)).view(*x.shape[:2], -1)

    def encode(self, media: MediaSpan) -> Tensor:
        return self.project(self.features(media))[0]
