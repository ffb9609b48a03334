"""Processors of LLaVA-like models: a picture becomes squares of the size that the tower reads.

LLaVA-1.5          one square
LLaVA-NeXT         the whole picture in one, and its tiles (``tiles``)
LLaVA-NeXT-video   the same; of a video one square for each frame
LLaVA-OneVision    the same; several pictures in a prompt become one square each
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import numpy as np
from PIL import Image
from sglang.srt.media import pixels, tiles
from sglang.srt.media.pixels import Levels
from sglang.srt.media.processor import Placeholder, Prepared, Processor
from sglang.srt.media.processor_settings import CLIP_MEAN, Settings, SettingsFiles, Size
from sglang.srt.media.tiles import Squares

BICUBIC = 3


class Fit(NamedTuple):
    """A whole picture as one square.

    Attributes:
        square: pixels of its side.
        size: what the picture is resized to.
        crop: the middle of that is taken.
        colour: what makes it a square before that, None where nothing does.
    """

    square: int
    size: Size
    crop: bool
    colour: tuple[int, int, int] | None
    filter: int

    @staticmethod
    def of(settings: Settings, square: int) -> Fit:
        """Read how pictures are fitted into squares. Raises ValueError where the settings do not
        give squares of ``square`` pixels."""
        kind = settings.text("image_processor_type", "CLIPImageProcessor")
        whole = "Siglip" in kind or "Onevision" in kind
        missing = Size(square, square) if whole else Size(0, 0, square)
        size = settings.size("size", missing)
        crop = settings.flag("do_center_crop", not whole)
        if crop:
            middle = settings.size("crop_size", Size(square, square))
            fits = middle in (Size(square, square), Size(0, 0, square))
        else:
            fits = size == Size(square, square)
        if not fits or not settings.flag("do_resize", True):
            raise ValueError(
                f"{settings.source}: size {settings.values.get('size')} and crop_size "
                f"{settings.values.get('crop_size')} do not make squares of {square} pixels, which "
                f"the vision tower in config.json reads."
            )
        colour = None
        if kind.startswith("LlavaImage") and settings.flag("do_pad", False):
            colour = mean_colour(settings)
        return Fit(square, size, crop, colour, settings.int("resample", BICUBIC, 0, 5))

    def __call__(self, picture: Image.Image) -> Levels:
        """[3, square, square]."""
        if self.colour is not None:
            picture = pixels.squared(picture, self.colour)
        if self.size.shortest:
            picture = pixels.shortest(picture, self.size.shortest, self.filter)
        else:
            picture = pixels.resized(picture, self.size.height, self.size.width, self.filter)
        values = pixels.levels(picture)
        return pixels.centre(values, self.square, self.square) if self.crop else values


def mean_colour(settings: Settings) -> tuple[int, int, int]:
    red, green, blue = (int(255 * c) for c in settings.colour("image_mean", CLIP_MEAN))
    return red, green, blue


class LlavaProcessor(Processor):
    """LLaVA-1.5 (Liu et al. 2023, "Improved baselines with visual instruction tuning")."""

    IMAGE_TOKEN: ClassVar[int] = 32000  # where config.json does not say

    def __init__(self, config: Settings, files: SettingsFiles) -> None:
        self.squares = self.squares_of(config)
        self.fit = Fit.of(files.image, self.squares.pixels)
        text = files.processor.text("image_token", "<image>")
        self.image_token = Placeholder(text, token(config, "image", self.IMAGE_TOKEN))
        self.video_token = Placeholder("<video>", -1)

    @classmethod
    def squares_of(cls, config: Settings) -> Squares:
        return Squares.of(config)

    def image(self, picture: Image.Image, alone: bool = True) -> Prepared:
        count = self.squares.features
        return Prepared.of("image", self.fit(picture)[None], count, (1, 1, count), picture.size)


class LlavaNextProcessor(LlavaProcessor):
    """LLaVA-NeXT (Liu et al. 2024, "LLaVA-NeXT: improved reasoning, OCR, and world knowledge")."""

    @classmethod
    def squares_of(cls, config: Settings) -> Squares:
        return Squares.of(config, tiles.NEXT)

    def image(self, picture: Image.Image, alone: bool = True) -> Prepared:
        size = (picture.height, picture.width)
        layout, side = self.squares.layout(size), self.squares.pixels
        target = tiles.best(size, self.squares.targets)
        fitted = pixels.resized(picture, *tiles.inside(size, target), self.fit.filter)
        canvas = pixels.centred(fitted, *target)
        rows, columns = layout.tiles
        cut = canvas.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4)
        whole = pixels.levels(pixels.resized(picture, side, side, self.fit.filter))
        every = np.concatenate([whole[None], cut.reshape(-1, 3, side, side)])
        count = self.squares.features + layout.features
        return Prepared.of("image", every, count, (1, 1, count), picture.size)


class LlavaNextVideoProcessor(LlavaNextProcessor):
    """LLaVA-NeXT-Video (Zhang et al. 2024, "LLaVA-NeXT: a strong zero-shot video understanding
    model")."""

    IMAGE_TOKEN = 32001
    VIDEO_TOKEN: ClassVar[int] = 32000

    def __init__(self, config: Settings, files: SettingsFiles) -> None:
        super().__init__(config, files)
        self.video_fit = Fit.of(files.video, self.squares.pixels)
        text = files.processor.text("video_token", "<video>")
        self.video_token = Placeholder(text, token(config, "video", self.VIDEO_TOKEN))
        self.pooled = self.pooled_of(config)

    def pooled_of(self, config: Settings) -> int:
        """Features along the side of a frame."""
        stride = config.int("spatial_pool_stride", 2, high=self.squares.side)
        return self.squares.side // stride

    def video(self, frames: Iterable[Image.Image], fps: float = 1.0) -> Prepared:
        size, every = (0, 0), []
        for frame in self.counted(frames):
            size = frame.size
            every.append(self.video_fit(frame))
        return self.watched(np.stack(every), size)

    def watched(self, every: Levels, size: tuple[int, int]) -> Prepared:
        grid = (len(every), self.pooled, self.pooled)
        return Prepared.of("video", every, len(every) * self.pooled**2, grid, size)


class LlavaOnevisionProcessor(LlavaNextVideoProcessor):
    """LLaVA-OneVision (Li et al. 2024, section 3.2 and figure 3)."""

    IMAGE_TOKEN, VIDEO_TOKEN = 151646, 151647

    def __init__(self, config: Settings, files: SettingsFiles) -> None:
        super().__init__(config, files)
        self.colour = mean_colour(files.image)

    @classmethod
    def squares_of(cls, config: Settings) -> Squares:
        return Squares.onevision(config)

    def pooled_of(self, config: Settings) -> int:
        return -(-self.squares.side // 2)

    def image(self, picture: Image.Image, alone: bool = True) -> Prepared:
        if alone:
            return super().image(picture)
        side, count = self.squares.pixels, self.squares.features + 1
        square = pixels.resized(pixels.squared(picture, self.colour), side, side, self.fit.filter)
        one = pixels.levels(square)[None]
        return Prepared.of("image", one, count, (1, 1, count), picture.size)

    def watched(self, every: Levels, size: tuple[int, int]) -> Prepared:
        # A feature more ends the video.
        count = len(every) * self.pooled**2 + 1
        return Prepared.of("video", every, count, (1, 1, count), size)


def token(config: Settings, kind: str, missing: int) -> int:
    """The id that config.json gives to placeholders of images or videos."""
    key = f"{kind}_token_id" if f"{kind}_token_id" in config.values else f"{kind}_token_index"
    return config.int(key, missing, low=0, high=1 << 31)
