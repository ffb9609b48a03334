"""LLaVA-NeXT (Liu et al. 2024): a picture is seen whole and in tiles, whose features are put
together again, freed of those that see padding, and ended row by row. LLaVA-NeXT-Video (Zhang et
al. 2024) takes the frames of a video like LLaVA-1.5 its image, pooled."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.layers.weight import LayerWeights, Slot, Slots, Stored
from sglang.srt.media.processor_settings import Settings
from sglang.srt.media.tiles import NEXT, Squares
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llava import LlavaForConditionalGeneration, LlavaSpec, llava_spec
from sglang.srt.models.model_spec import ModelSpec, extended
from sglang.srt.numeric.torch_later import F, Tensor, torch

NEWLINE = "model.image_newline"


class Newline:
    """The hidden state that ends a row of features."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def stored(self) -> list[Stored]:
        return []

    def slots(self, prefix: str) -> Slots:
        return {prefix: Slot(self.weight, tuple(self.weight.shape), kind="bias")}


class LlavaNextForConditionalGeneration(LlavaForConditionalGeneration):
    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        squares = Squares.of(Settings(config.values, config.source), NEXT)
        return llava_spec(config, architecture, squares)

    def vision_parts(self) -> dict[str, LayerWeights]:
        self.newline = self.place.empty(self.spec.hidden_size)
        return {**super().vision_parts(), NEWLINE: Newline(self.newline)}

    def encode(self, media: MediaSpan) -> Tensor:
        return self.assembled(self.project(self.features(media)), media)

    def assembled(self, x: Tensor, media: MediaSpan) -> Tensor:
        """Features [1 + tiles, side * side, width] -> [media.count, width]: those of the whole,
        then row by row those of the tiles, with a newline behind each row."""
        base = x[0]
        end = self.newline.to(x.dtype)
        if x.shape[0] == 1:
            return torch.cat([base, end[None]])
        side, width = self.spec.squares.side, x.shape[2]
        layout = self.spec.squares.layout((media.size[1], media.size[0]))
        rows, columns = layout.tiles
        grid = x[1:].view(rows, columns, side, side, width).transpose(1, 2)
        grid = grid.reshape(rows * side, columns * side, width)
        grid = grid[layout.top : rows * side - layout.top]
        grid = grid[:, layout.left : columns * side - layout.left]
        if layout.shrunk:
            grid = resampled(grid[None], (layout.rows, layout.columns))[0]
        lines = torch.cat([grid, end.expand(grid.shape[0], 1, -1)], dim=1)
        return torch.cat([base, lines.flatten(0, 1)])


def resampled(x: Tensor, size: tuple[int, int]) -> Tensor:
    """[N, height, width, channels] with another height and width, bilinear."""
    return F.interpolate(x.permute(0, 3, 1, 2), size, mode="bilinear").permute(0, 2, 3, 1)


@dataclass(frozen=True, kw_only=True)
class LlavaNextVideoSpec(LlavaSpec):
    """``stride``: patches along either side that become one feature of a frame; ``pool``: their
    "average" or "max"."""

    stride: int
    pool: str


class LlavaNextVideoForConditionalGeneration(LlavaNextForConditionalGeneration):
    spec: LlavaNextVideoSpec

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        squares = Squares.of(Settings(config.values, config.source), NEXT)
        pool = config.text("spatial_pool_mode", "average")
        if pool not in ("average", "max"):
            raise config.error("spatial_pool_mode", "supported are average and max.")
        stride = config.int("spatial_pool_stride", 2)
        if stride > squares.side:
            raise config.error("spatial_pool_stride", f"a frame has {squares.side} patches a side.")
        spec = llava_spec(config, architecture, squares)
        return extended(spec, LlavaNextVideoSpec, stride=stride, pool=pool)

    def encode(self, media: MediaSpan) -> Tensor:
        if media.kind == "image":
            return super().encode(media)
        x, side, stride = self.features(media), self.spec.squares.side, self.spec.stride
        grid = x.view(-1, side, side, x.shape[2]).permute(0, 3, 1, 2)
        pool = F.max_pool2d if self.spec.pool == "max" else F.avg_pool2d
        pooled = pool(grid, stride).flatten(2).transpose(1, 2)
        return self.project(pooled).flatten(0, 1)
