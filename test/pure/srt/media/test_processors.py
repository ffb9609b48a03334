"""Counts and refusals of processors. That they make the pixels of transformers is held by
test/cpu/srt/models/vision/test_vision_parity.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sglang.srt.media import qwen_processor
from sglang.srt.media.llava_processor import LlavaProcessor
from sglang.srt.media.processor import Prepared, Processor
from sglang.srt.media.processor_registry import processor_of
from sglang.srt.media.processor_settings import Settings
from sglang.srt.media.tiles import Squares

LLAVA, NEXT = "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration"
NEXT_VIDEO = "LlavaNextVideoForConditionalGeneration"
ONEVISION = "LlavaOnevisionForConditionalGeneration"
QWEN = "Qwen2_5_VLForConditionalGeneration"
CLIP = {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 7}
SMALL_NEXT = {"vision_config": CLIP, "image_grid_pinpoints": [[28, 56], [56, 28]]}


def processor(
    directory: Path, architecture: str, config: dict[str, Any], **files: dict[str, Any]
) -> Processor:
    for name, values in files.items():
        (directory / f"{name}.json").write_text(json.dumps(values))
    found = processor_of(directory, {"architectures": [architecture], **config})
    assert found is not None
    return found


def black(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height))


def test_a_model_that_sees_nothing_has_none(tmp_path: Path) -> None:
    assert processor_of(tmp_path, {"architectures": ["LlamaForCausalLM"]}) is None
    assert processor_of(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("architecture", "size", "count", "shape"),
    [
        (LLAVA, (1000, 500), 576, (1, 3, 336, 336)),
        (NEXT, (672, 672), 576 + 48 * 49, (5, 3, 336, 336)),
        (NEXT, (1000, 300), 576 + 22 * 73, (4, 3, 336, 336)),
        (NEXT_VIDEO, (300, 1000), 576 + 72 * 23, (4, 3, 336, 336)),
        (ONEVISION, (384, 384), 729 + 27 * 28, (2, 3, 384, 384)),
        (QWEN, (1036, 1036), 1225, (1, 3, 980, 980)),
        (QWEN, (28, 28), 4, (1, 3, 56, 56)),
    ],
)
def test_the_releases_own_sizes(
    architecture: str, size: tuple[int, int], count: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Sizes with no file but config.json, and that without sizes."""
    found = processor(tmp_path, architecture, {}).image(black(*size))
    assert (found.count, found.shape, found.size) == (count, shape, size)
    assert len(found.pixels) == shape[0] * shape[1] * shape[2] * shape[3]


@pytest.mark.parametrize(
    ("architecture", "frames", "count"),
    [(NEXT_VIDEO, 5, 5 * 144), (ONEVISION, 5, 5 * 196 + 1), (QWEN, 5, 3 * 13 * 23)],
)
def test_videos(architecture: str, frames: int, count: int, tmp_path: Path) -> None:
    found = processor(tmp_path, architecture, {}).video((black(640, 360) for _ in range(frames)), 4)
    assert found.count == count
    assert found.tick == (2.0 if architecture == QWEN else 1.0)
    if architecture == QWEN:
        assert (found.grid, found.shape) == ((3, 13, 23), (6, 3, 364, 644))


def test_several_pictures_get_one_square_each_from_onevision(tmp_path: Path) -> None:
    reader = processor(tmp_path, ONEVISION, {})
    assert reader.image(black(900, 500), alone=False).count == 730


def test_placeholders(tmp_path: Path) -> None:
    found = processor(tmp_path, LLAVA, {"image_token_index": 7})
    assert (found.image_token, found.video_token.id) == (("<image>", 7), -1)
    found = processor(tmp_path, QWEN, {"image_token_id": 8, "video_token_id": 9})
    assert (found.image_token, found.video_token) == (("<|image_pad|>", 8), ("<|video_pad|>", 9))
    names = {"image_token": {"content": "<img>"}}
    found = processor(tmp_path, NEXT_VIDEO, {}, processor_config=names)
    assert (found.image_token, found.video_token.id) == (("<img>", 32001), 32000)


def test_newer_checkpoints_have_one_file(tmp_path: Path) -> None:
    nested = {"image_processor": {"size": {"shortest_edge": 20}, "crop_size": 28}}
    found = processor(tmp_path, LLAVA, {"vision_config": CLIP}, processor_config=nested)
    assert found.image(black(50, 40)).shape == (1, 3, 28, 28)
    white = Image.new("RGB", (50, 40), (255, 255, 255))
    values = found.image(white).pixels
    assert values[0] == 0  # 20 pixels in the middle of 28
    assert values[28 * 14 + 14] == 255


def test_a_video_has_settings_of_its_own(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "preprocessor_config": {"max_pixels": 56 * 56},
        "video_preprocessor_config": {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28}},
    }
    found = processor(tmp_path, QWEN, {}, **files)
    assert found.image(black(500, 500)).grid == (1, 2, 2)
    assert found.video([black(500, 500)]).grid == (1, 1, 1)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (LLAVA, {"vision_config": CLIP}, {"crop_size": 30}, "do not make squares of 28 pixels"),
    (LLAVA, {"vision_config": CLIP}, {"do_resize": False}, "do not make squares"),
    (LLAVA, {"vision_config": CLIP}, {"do_center_crop": False}, "do not make squares"),
    (LLAVA, {"vision_config": CLIP}, {"size": {"longest_edge": 28}}, "it must have shortest_edge"),
    (LLAVA, {"vision_config": CLIP}, {"size": "28"}, "size is '28'; it must be an integer"),
    (LLAVA, {"vision_config": CLIP}, {"resample": 9}, "resample is 9; it must be an integer from"),
    (LLAVA, {"vision_config": {**CLIP, "patch_size": 29}}, {}, "at most the image size, 28"),
    (LLAVA, {"vision_config": {**CLIP, "image_size": 1 << 20}}, {}, "from 1 to 16384"),
    (LLAVA, {"vision_config": []}, {}, "vision_config is []; it must be an object"),
    (LLAVA, {"vision_feature_select_strategy": "some"}, {}, "it must be default or full"),
    (LLAVA, {"image_token_index": -1}, {}, "image_token_index is -1"),
    (NEXT, {**SMALL_NEXT, "image_grid_pinpoints": [[28, 57]]}, {}, "whole multiples of 28"),
    (NEXT, {**SMALL_NEXT, "image_grid_pinpoints": []}, {}, "at most 1024 pairs"),
    (NEXT, {**SMALL_NEXT, "image_grid_pinpoints": [[28] * 3]}, {}, "at most 1024 pairs"),
    (NEXT, {**SMALL_NEXT, "image_grid_pinpoints": [[28 * 99] * 2]}, {}, "more than 256 tiles"),
    (NEXT, {**SMALL_NEXT, "vision_feature_select_strategy": "full"}, {}, "a hidden state for each"),
    (NEXT_VIDEO, {**SMALL_NEXT, "spatial_pool_stride": 5}, {}, "from 1 to 4"),
    (ONEVISION, {"vision_aspect_ratio": "pad"}, {}, "it must be anyres_max_ and a number"),
    (QWEN, {}, {"patch_size": 16}, "patch_size is 16; config.json says 14"),
    (QWEN, {}, {"min_pixels": 9999, "max_pixels": 999}, "must not be above its longest_edge"),
]


@pytest.mark.parametrize(("architecture", "config", "file", "problem"), REFUSED)
def test_settings_that_cannot_be_followed(
    architecture: str, config: dict[str, Any], file: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        processor(tmp_path, architecture, config, preprocessor_config=file)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100000, " " * (1 << 20) + "{}", "\xff"])
def test_files_that_are_no_settings(text: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"preprocessor_config\.json"):
        processor_of(tmp_path, {"architectures": [LLAVA]})


@pytest.mark.parametrize(
    ("architecture", "size", "problem"),
    [
        (LLAVA, (60000, 1), "above the limit of 16777216 pixels. Crop it"),
        (LLAVA, (1, 60000), "above the limit of 16777216 pixels. Crop it"),
        (QWEN, (4001, 20), "its longer side may be 200 times the shorter one at most"),
    ],
)
def test_pictures_too_thin(
    architecture: str, size: tuple[int, int], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        processor(tmp_path, architecture, {}).image(black(*size))


@pytest.mark.parametrize("architecture", [NEXT, ONEVISION])
def test_the_thinnest_picture_fits_into_tiles(architecture: str, tmp_path: Path) -> None:
    found = processor(tmp_path, architecture, {})
    assert isinstance(found, LlavaProcessor)
    for size in ((60000, 1), (1, 60000), (1, 1)):
        assert found.image(black(*size)).count >= found.squares.features


def test_large_grids_are_shrunk_by_onevision() -> None:
    squares = Squares.onevision(Settings({}, "config.json"))
    assert squares.layout((1152, 1152)) == ((3, 3), 0, 0, 81, 81, False)
    assert squares.layout((2304, 2304)) == ((6, 6), 0, 0, 81, 81, True)


def test_frames_are_counted_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = iter(lambda: black(4, 4), None)
    reader = processor(tmp_path, NEXT_VIDEO, SMALL_NEXT)
    with pytest.raises(ValueError, match="more than 256 frames; choose a lower num_frames"):
        reader.video(endless)
    with pytest.raises(ValueError, match="no frames"):
        reader.video([])
    with pytest.raises(ValueError, match="reads images, not videos"):
        processor(tmp_path, LLAVA, {}).video([black(4, 4)])
    monkeypatch.setattr(qwen_processor, "MAX_PIXELS", 1 << 21)
    large = iter(lambda: black(1000, 1000), None)
    with pytest.raises(ValueError, match="above the limit of 2097152 pixels"):
        processor(tmp_path, QWEN, {}).video(large)


def test_a_key_is_of_all_that_is_seen() -> None:
    one = Prepared("image", 4, (1, 3, 2, 2), bytes(12))
    others = [
        Prepared("video", 4, (1, 3, 2, 2), bytes(12)),
        Prepared("image", 5, (1, 3, 2, 2), bytes(12)),
        Prepared("image", 4, (1, 3, 1, 4), bytes(12)),
        Prepared("image", 4, (1, 3, 2, 2), bytes(11) + b"1"),
        Prepared("image", 4, (1, 3, 2, 2), bytes(12), grid=(1, 2, 2)),
        Prepared("image", 4, (1, 3, 2, 2), bytes(12), size=(2, 2)),
        Prepared("image", 4, (1, 3, 2, 2), bytes(12), tick=2.0),
    ]
    keys = {x.key for x in (one, *others)}
    assert len(keys) == 8
    assert {len(key) for key in keys} == {16}
    assert one.key == Prepared("image", 4, (1, 3, 2, 2), bytes(12)).key
    placed = one.at(9)
    assert (placed.start, placed.end, placed.key) == (9, 13, one.key)
