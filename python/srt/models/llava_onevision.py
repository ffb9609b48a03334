"""LLaVA-OneVision (Li et al. 2024): LLaVA-NeXT with SigLIP's tower. Large grids of tiles are
interpolated to a smaller one (section 3.2), frames of a video to a quarter of their features."""

from __future__ import annotations

from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.media.processor_settings import Settings
from sglang.srt.media.tiles import Squares
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llava import llava_spec
from sglang.srt.models.llava_next import LlavaNextForConditionalGeneration, resampled
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.numeric.torch_later import Tensor, torch


class LlavaOnevisionForConditionalGeneration(LlavaNextForConditionalGeneration):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        values = {**config.values}
        vision = {"model_type": "siglip_vision_model", **(values.get("vision_config") or {})}
        values["vision_config"] = vision
        values["text_config"] = {"model_type": "qwen2", **(values.get("text_config") or {})}
        whole = Fields(values, config.source)
        return llava_spec(
            whole, architecture, Squares.onevision(Settings(values, config.source)), layer=-1
        )

    def encode(self, media: MediaSpan) -> Tensor:
        if media.kind == "image":
            return super().encode(media)
        x, side = self.project(self.features(media)), self.spec.squares.side
        half = -(-side // 2)
        frames = resampled(x.view(-1, side, side, x.shape[2]), (half, half))
        return torch.cat([frames.flatten(0, 2), self.newline.to(x.dtype)[None]])
