"""Tiles: a picture of any resolution as squares that a vision tower can read (LLaVA-NeXT; Liu et
al. 2024, "dynamic high resolution"). Geometry alone, the same in the server and in the worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sglang.srt.media.processor_settings import Settings

MAX_TARGETS, MAX_TILES = 1024, 256
Sides = tuple[int, int]  # height, width

# Default targets of the models' releases.
NEXT: tuple[Sides, ...] = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
ONEVISION: tuple[Sides, ...] = tuple((384 * i, 384 * j) for i in range(1, 7) for j in range(1, 7))


@dataclass(frozen=True)
class Squares:
    """The squares that the tower of a LLaVA-like model reads, and their hidden states.

    Attributes:
        pixels: of a square's side.
        side: patches along it.
        skip: hidden states at the beginning of each square's that are left out.
        features: hidden states of a square that count.
        targets: sizes that a picture may be fitted into, whole squares each; empty where it
            becomes a single one.
        most: see ``layout``.
    """

    pixels: int
    side: int
    skip: int
    features: int
    targets: tuple[Sides, ...] = ()
    most: int = 0

    @staticmethod
    def of(config: Settings, missing: Sequence[Sides] = (), siglip: bool = False) -> Squares:
        """Read a ``config.json``. ``missing``: default targets; ``siglip``: default tower, all of
        whose hidden states count. Raises ValueError."""
        vision = config.object("vision_config")
        full = siglip
        siglip = "siglip" in vision.text("model_type", "siglip" if siglip else "clip")
        pixels = vision.int("image_size", 384 if siglip else 336)
        patch = vision.int("patch_size", 14)
        side = pixels // patch
        if side < 1:
            raise vision.error("patch_size", f"it must be at most the image size, {pixels}.")
        strategy = config.text("vision_feature_select_strategy", "full" if full else "default")
        if strategy not in ("default", "full"):
            raise config.error("vision_feature_select_strategy", "it must be default or full.")
        skip = int(strategy == "default")
        # CLIP has a class embedding in front of its patches, SigLIP has not.
        features = side * side + (not siglip) - skip
        if not missing:
            return Squares(pixels, side, skip, features)
        if features != side * side:
            raise config.error(
                "vision_feature_select_strategy",
                f"tiles need a hidden state for each patch; of this tower "
                f"{'full' if skip else 'default'} gives that.",
            )
        targets = _targets(config, missing, pixels)
        return Squares(pixels, side, skip, features, targets)

    @staticmethod
    def onevision(config: Settings) -> Squares:
        """Read a LLaVA-OneVision ``config.json``; see ``of``."""
        most = config.text("vision_aspect_ratio", "anyres_max_9").removeprefix("anyres_max_")
        if not most.isdecimal() or not 0 < int(most) <= MAX_TILES:
            raise config.error("vision_aspect_ratio", "it must be anyres_max_ and a number.")
        return replace(Squares.of(config, ONEVISION, siglip=True), most=int(most))

    def layout(self, picture: Sides) -> TileLayout:
        return layout(picture, best(picture, self.targets), self.pixels, self.side, self.most)


def _targets(config: Settings, missing: Sequence[Sides], pixels: int) -> tuple[Sides, ...]:
    value = config.values.get("image_grid_pinpoints")
    given = missing if value is None else value
    problem = f"it must list at most {MAX_TARGETS} pairs of whole multiples of {pixels}."
    if not isinstance(given, (list, tuple)) or not 0 < len(given) <= MAX_TARGETS:
        raise config.error("image_grid_pinpoints", problem)
    found = []
    for pair in given:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise config.error("image_grid_pinpoints", problem)
        for one in pair:
            if isinstance(one, bool) or not isinstance(one, int) or one < 1 or one % pixels:
                raise config.error("image_grid_pinpoints", problem)
        if pair[0] * pair[1] > MAX_TILES * pixels**2:
            raise config.error("image_grid_pinpoints", f"{pair} has more than {MAX_TILES} tiles.")
        found.append((pair[0], pair[1]))
    return tuple(found)


class TileLayout(NamedTuple):
    """The picture's own features among those of its tiles.

    Attributes:
        tiles: rows and columns of tiles.
        top, left: rows and columns of features to be left out at either side: they see padding.
        rows, columns: features between, after shrinking.
        shrunk: whether they are interpolated to that size.
    """

    tiles: Sides
    top: int
    left: int
    rows: int
    columns: int
    shrunk: bool

    @property
    def features(self) -> int:
        """One that ends the row after each of its columns."""
        return self.rows * (self.columns + 1)


def best(picture: Sides, targets: Sequence[Sides]) -> Sides:
    """The target that keeps most of the picture's pixels and, of several, wastes least."""
    height, width = picture

    def merit(target: Sides) -> tuple[int, int]:
        scale = min(target[1] / width, target[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - target[0] * target[1]

    return max(targets, key=merit)  # the first of equals


def inside(picture: Sides, target: Sides) -> Sides:
    """The size of the picture when it is as large as fits into the target."""
    height, width = picture
    across, down = target[1] / width, target[0] / height
    if across < down:
        return min(math.ceil(height * across), target[0]), target[1]
    return target[0], min(math.ceil(width * down), target[1])


def layout(picture: Sides, target: Sides, tile: int, side: int, most: int) -> TileLayout:
    """Layout of a picture in tiles of ``tile`` pixels and ``side**2`` features, in ``target``.

    ``most``: of more features than that many tiles have the grid is shrunk (LLaVA-OneVision's
    ``anyres_max``); 0 for no limit.
    """
    tiles = target[0] // tile, target[1] // tile
    rows, columns = tiles[0] * side, tiles[1] * side
    height, width = picture
    top = left = 0
    # Rounded as the reference implementation does: a size like 26.9999999999 is 27.
    if width / height > columns / rows:
        top = (rows - int(round(height * (columns / width), 7))) // 2
    else:
        left = (columns - int(round(width * (rows / height), 7))) // 2
    rows, columns = rows - 2 * top, columns - 2 * left
    ratio = math.sqrt(rows * columns / (most * side**2)) if most else 0.0
    if ratio > 1.1:
        return TileLayout(tiles, top, left, int(rows // ratio), int(columns // ratio), True)
    return TileLayout(tiles, top, left, rows, columns, False)
