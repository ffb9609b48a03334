"""Squares and grids of tiles against transformers' own, over many settings and sizes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from helpers import vision
from sglang.srt.media import tiles
from sglang.srt.media.processor_registry import processor_of
from sglang.srt.media.processor_settings import CLIP_MEAN, CLIP_STD, Settings
from sglang.srt.media.tiles import Squares
from transformers.image_processing_utils import select_best_resolution
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

SQUARE = {"height": 28, "width": 28}
HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("theirs", "mean", "std"),
    [
        (CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size=SQUARE), CLIP_MEAN, CLIP_STD),
        (
            LlavaImageProcessorPil(do_pad=True, size={"shortest_edge": 28}, crop_size=SQUARE),
            CLIP_MEAN,
            CLIP_STD,
        ),
        (SiglipImageProcessorPil(size=SQUARE, resample=2), HALF, HALF),
    ],
)
def test_squares(theirs: Any, mean: Any, std: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    tower = {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 7}
    config = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": tower}
    ours = processor_of(tmp_path, config)
    assert ours is not None
    for seed, size in enumerate([(41, 97), (97, 40), (28, 28), (7, 5), (1, 40), (60, 3)]):
        picture = vision.picture(*size, seed)
        want = theirs(picture, return_tensors="pt")["pixel_values"]
        got = vision.normalised(ours.image(picture), mean, std)
        assert (got - want).abs().max() < 1e-6


def counts(processor: Any, squares: Squares, size: tuple[int, int]) -> int:
    """Features of a picture's tiles, by transformers' way of counting them."""
    best = select_best_resolution(size, [list(t) for t in squares.targets])
    scale = [side // squares.pixels for side in best]
    patches = (squares.side, squares.side)
    return sum(processor._get_unpadded_features(processor, *size, *patches, *scale))


@pytest.mark.parametrize("name", ["next", "onevision"])
def test_grids(name: str) -> None:
    config = Settings({}, "config.json")
    theirs: Any = LlavaNextProcessor
    squares = Squares.of(config, tiles.NEXT)
    if name == "onevision":
        theirs = type("Theirs", (LlavaOnevisionProcessor,), {"vision_aspect_ratio": "anyres_max_9"})
        squares = Squares.onevision(config)
    r = random.Random(0)
    sizes = [(r.randint(1, 3000), r.randint(1, 3000)) for _ in range(800)]
    sizes += [(r.randint(1, 300), r.randint(1, 300)) for _ in range(200)]
    # A product of floats is just below a whole number for these sizes.
    sizes += [(47, 1128), (55, 176), (110, 352), (205, 656), (205, 984), (1128, 47), (176, 55)]
    for size in sizes:
        for order in (1, -1):  # in the other one the first of equals is not the smallest
            targets = [list(t) for t in squares.targets[::order]]
            want = select_best_resolution(size, targets)
            assert tiles.best(size, squares.targets[::order]) == want, size
        assert squares.layout(size).features == counts(theirs, squares, size), size
