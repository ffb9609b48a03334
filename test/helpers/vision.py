"""Small random multimodal models of the transformers library: checkpoints, prompts, references."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from helpers.paged import Paged, Sequence
from PIL import Image
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Batch, Piece, Row, RowOutput, Sample
from sglang.srt.core.media_marks import MediaSpan, within
from sglang.srt.core.places import places
from sglang.srt.media.processor import Prepared, Processor
from sglang.srt.media.processor_registry import processor_of
from torch import Tensor

IMAGE, VIDEO = 90, 91  # ids of the placeholders
TEXT: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "initializer_range": 0.3,
}  # fmt: skip
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model", "hidden_size": 24, "intermediate_size": 36,
    "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 28, "patch_size": 7,
    "initializer_range": 0.3, "initializer_factor": 8.0,
}  # fmt: skip
SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "image_size": 30, "vision_use_head": False}
SQUARE = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
NEXT = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
ONEVISION = [[30 * i, 30 * j] for i in range(1, 5) for j in range(1, 5)]
QWEN_VISION: dict[str, Any] = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 4, "patch_size": 4,
    "window_size": 24, "out_hidden_size": 32, "fullatt_block_indexes": [1],
    "tokens_per_second": 2, "initializer_range": 0.3,
}  # fmt: skip
QWEN_PIXELS = {"patch_size": 4, "min_pixels": 8 * 8 * 4, "max_pixels": 8 * 8 * 40}


@dataclass(frozen=True)
class Kind:
    """A family as these tests make it small.

    Attributes:
        config: of its model, beside the text model's; files: of its checkpoint, by name.
        text: kind of its text model.
    """

    name: str
    config: dict[str, Any]
    files: dict[str, dict[str, Any]]
    text: str = "llama"
    ids: tuple[str, str] = ("image_token_index", "video_token_index")
    more: dict[str, Any] = field(default_factory=dict)


def _image(kind: str, **settings: Any) -> dict[str, dict[str, Any]]:
    return {"preprocessor_config.json": {"image_processor_type": kind, **settings}}


KINDS = {
    "LlavaForConditionalGeneration": Kind(
        "Llava", {"vision_config": CLIP}, _image("CLIPImageProcessor", **SQUARE)
    ),
    "LlavaNextForConditionalGeneration": Kind(
        "LlavaNext", {"vision_config": CLIP, "image_grid_pinpoints": NEXT},
        _image("LlavaNextImageProcessor", image_grid_pinpoints=NEXT, **SQUARE), "mistral",
    ),
    "LlavaNextVideoForConditionalGeneration": Kind(
        "LlavaNextVideo", {"vision_config": CLIP, "image_grid_pinpoints": NEXT},
        _image("LlavaNextImageProcessor", image_grid_pinpoints=NEXT, **SQUARE),
    ),
    "LlavaOnevisionForConditionalGeneration": Kind(
        "LlavaOnevision",
        {"vision_config": SIGLIP, "image_grid_pinpoints": ONEVISION,
         "vision_aspect_ratio": "anyres_max_4"},
        _image(
            "LlavaOnevisionImageProcessor", image_grid_pinpoints=ONEVISION,
            size={"height": 30, "width": 30}, image_mean=[0.5] * 3, image_std=[0.5] * 3,
        ),
        "qwen2",
    ),
    "Qwen2_5_VLForConditionalGeneration": Kind(
        "Qwen2_5_VL", {"vision_config": QWEN_VISION},
        _image("Qwen2VLImageProcessor", **QWEN_PIXELS),
        "qwen2_5_vl_text", ("image_token_id", "video_token_id"),
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                             "mrope_section": [2, 1, 1]}},
    ),
}  # fmt: skip


def config(architecture: str, **settings: Any) -> Any:
    """A small model's."""
    kind = KINDS[architecture]
    text = {**TEXT, "model_type": kind.text, **kind.more}
    ids = dict(zip(kind.ids, (IMAGE, VIDEO)))
    config_class = getattr(transformers, f"{kind.name}Config")
    return config_class(text_config=text, **kind.config, **ids, **settings)


def make(architecture: str, seed: int = 0, **settings: Any) -> Any:
    """A float32 model in which every weight is random."""
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config(architecture, **settings)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 or "embedding" in name:
                weight.normal_(1.0 if "norm" in name and "bias" not in name else 0.0, 0.3)
            elif "visual" in name or "vision" in name or "projector" in name:
                weight.normal_(0.0, 1.5 * (weight[0].numel()) ** -0.5)
    return model


def save(model: Any, directory: Path, rename: Callable[[str], str] | None = None) -> Path:
    """Write the checkpoint and its processors' files. ``rename``: other names for its tensors."""
    from safetensors.torch import load_file, save_file

    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    for name, values in KINDS[type(model).__name__].files.items():
        (directory / name).write_text(json.dumps(values))
    if rename is not None:
        path = directory / "model.safetensors"
        tensors = load_file(path)
        save_file({rename(name): t for name, t in tensors.items()}, path, {"format": "pt"})
    return directory


def processor(directory: Path) -> Processor:
    found = processor_of(directory, json.loads((directory / "config.json").read_text()))
    assert found is not None
    return found


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise over broad stripes: neither flat nor without structure."""
    r = np.random.default_rng(seed)
    noise = r.integers(0, 120, (height, width, 3))
    stripes = 130 * ((np.arange(width) // max(1, width // 5) + seed) % 2)
    return Image.fromarray((noise + stripes[None, :, None]).astype(np.uint8))


def prompt(
    texts: list[list[int]], media: list[Prepared]
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """Texts with media between them."""
    tokens, placed = list(texts[0]), []
    for medium, text in zip(media, texts[1:], strict=True):
        placed.append(medium.at(len(tokens)))
        tokens += [IMAGE if medium.kind == "image" else VIDEO] * medium.count + text
    return tokens, tuple(placed)


def normalised(medium: Prepared | MediaSpan, mean: Any, std: Any) -> Tensor:
    """Pixels [N, 3, height, width], in float32."""
    levels = np.frombuffer(medium.pixels, np.uint8).reshape(medium.shape).astype(np.float32)
    mean, std = (np.array(c, np.float32)[:, None, None] for c in (mean, std))
    return torch.from_numpy((levels / np.float32(255) - mean) / std)


def row(
    paged: Paged, sequence: Sequence, media: tuple[MediaSpan, ...], count: int, **wanted: Any
) -> Row:
    """The next ``count`` tokens, with what they show and where they stand."""
    start, end = sequence.done, sequence.done + count
    out = paged.row(sequence, count, **wanted)
    out.pieces = [
        Piece(m, max(m.start - start, 0), max(start - m.start, 0),
              min(end, m.end) - max(start, m.start))
        for m in within(media, start, end)
    ]  # fmt: skip
    if paged.worker.info["sections"]:
        out.places = places(media, start, end)
    return out


@torch.inference_mode()
def logits(paged: Paged, rows: list[Row]) -> list[Tensor]:
    """Logits of every token of every row, in one pass."""
    runner, batch = paged.worker.runner, Batch(0, rows)
    inputs = runner.reader.read(batch)
    assert runner.features is not None
    outputs = [RowOutput() for _ in rows]
    inputs, _ = runner.features.embed(batch, inputs, outputs)
    assert [out.error for out in outputs] == [""] * len(rows)
    hidden = runner.forward.hidden(inputs, np.arange(len(inputs.tokens), dtype=np.int32))
    return list(runner.forward.logits(hidden).split([len(r.tokens) for r in rows]))


def greedy(paged: Paged, tokens: list[int], media: tuple[MediaSpan, ...], count: int) -> list[int]:
    """``count`` tokens after a prompt."""
    sequence, sample = Sequence(list(tokens)), Sample(SamplingParams(temperature=0.0))
    for _ in range(count):
        left = len(sequence.tokens) - sequence.done
        output = paged.run([row(paged, sequence, media, left, sample=sample)]).rows[0]
        assert not output.error
        sequence.tokens.append(output.token)
    return sequence.tokens[len(tokens) :]
