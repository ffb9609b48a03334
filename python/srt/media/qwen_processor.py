"""The processor of Qwen2.5-VL (Bai et al. 2025, section 2.1.1): pictures keep their resolution,
rounded to whole patches, four of which make a token; frames of a video are taken in pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from PIL import Image
from sglang.srt.media import pixels
from sglang.srt.media.llava_processor import BICUBIC, token
from sglang.srt.media.processor import Placeholder, Prepared, Processor
from sglang.srt.media.processor_settings import Settings, SettingsFiles

MAX_RATIO = 200
MAX_PIXELS = 1 << 27  # pixels of a resized video
MAX_TICK = 1 << 20  # no context reaches as far


class PixelBudget:
    """Pixels that a picture may have at least and at most after resizing."""

    def __init__(self, settings: Settings, least: int, most: int) -> None:
        """Older files say min_pixels and max_pixels, newer ones size."""
        size, high = settings.object("size"), pixels.MAX_RESIZED
        least = size.int("shortest_edge", least, high=1 << 31)
        most = size.int("longest_edge", most, high=1 << 31)
        self.least = settings.int("min_pixels", least, high=1 << 31)
        self.most = min(settings.int("max_pixels", most, high=1 << 31), high)
        if self.least > self.most:
            raise settings.error("size", "its shortest_edge must not be above its longest_edge.")
        self.filter = settings.int("resample", BICUBIC, 0, 5)

    def fit(self, width: int, height: int, unit: int) -> tuple[int, int]:
        """Height and width, whole multiples of ``unit``, of nearly the same shape."""
        if max(width, height) > MAX_RATIO * min(width, height):
            raise ValueError(
                f"the image has {width} x {height} pixels; its longer side may be {MAX_RATIO} "
                f"times the shorter one at most. Crop it."
            )
        tall, wide = round(height / unit) * unit, round(width / unit) * unit
        if tall * wide > self.most:
            shrink = math.sqrt(height * width / self.most)
            tall = max(unit, math.floor(height / shrink / unit) * unit)
            wide = max(unit, math.floor(width / shrink / unit) * unit)
        elif tall * wide < self.least:
            grow = math.sqrt(self.least / (height * width))
            tall = math.ceil(height * grow / unit) * unit
            wide = math.ceil(width * grow / unit) * unit
        return tall, wide


class QwenProcessor(Processor):
    def __init__(self, config: Settings, files: SettingsFiles) -> None:
        vision = config.object("vision_config")
        patch, merge = vision.int("patch_size", 14), vision.int("spatial_merge_size", 2)
        self.unit = patch * merge
        self.pair = vision.int("temporal_patch_size", 2)
        self.per_second = vision.int("tokens_per_second", 4)
        for settings in (files.image, files.video):
            for key, own in (("patch_size", patch), ("merge_size", merge),
                             ("temporal_patch_size", self.pair)):  # fmt: skip
                if settings.int(key, own) != own:
                    raise settings.error(key, f"config.json says {own}.")
        self.pictures = PixelBudget(files.image, 56 * 56, 28 * 28 * 1280)
        self.frames = PixelBudget(files.video, 128 * 28 * 28, 28 * 28 * 768)
        text = files.processor.text("image_token", "<|image_pad|>")
        self.image_token = Placeholder(text, token(config, "image", 151655))
        text = files.processor.text("video_token", "<|video_pad|>")
        self.video_token = Placeholder(text, token(config, "video", 151656))

    def image(self, picture: Image.Image, alone: bool = True) -> Prepared:
        return self._prepared("image", [picture], self.pictures, 1.0)

    def video(self, frames: Iterable[Image.Image], fps: float = 1.0) -> Prepared:
        tick = min(self.per_second * self.pair / fps, MAX_TICK)
        return self._prepared("video", self.counted(frames), self.frames, tick)

    def _prepared(
        self, kind: str, frames: Iterable[Image.Image], budget: PixelBudget, tick: float
    ) -> Prepared:
        size, tall, wide = (0, 0), 0, 0
        every: list[pixels.Levels] = []
        for frame in frames:
            if not every:
                size = frame.size
                tall, wide = budget.fit(*size, self.unit)
            every.append(pixels.levels(pixels.resized(frame, tall, wide, budget.filter)))
            if len(every) * tall * wide > MAX_PIXELS:
                raise ValueError(
                    f"the video has {MAX_PIXELS // (tall * wide)} frames of {wide} x {tall} pixels "
                    f"and more, above the limit of {MAX_PIXELS} pixels; choose a lower num_frames."
                )
        # The last frame stands in where its group is not full.
        rest = -len(every) % self.pair if kind == "video" else 0
        every += [every[-1]] * rest
        grid = (-(-len(every) // self.pair), tall // self.unit, wide // self.unit)
        return Prepared.of(kind, np.stack(every), math.prod(grid), grid, size, tick)
