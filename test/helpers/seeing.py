"""Directories of small multimodal models, for ``--load-format dummy``: the embedded model's
tokenizer with placeholders, random weights. And pictures."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sglang.srt.tokenizer.tokenizer import EMBEDDED

IMAGE, VIDEO = 3072, 3073  # ids of the placeholders
TEXT: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 3074, "hidden_size": 32, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 2048, "bos_token_id": None, "eos_token_id": 2,
    "pad_token_id": None, "initializer_range": 0.3, "rms_norm_eps": 1e-5,
}  # fmt: skip
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model", "hidden_size": 24, "intermediate_size": 36,
    "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 28, "patch_size": 7,
}  # fmt: skip
TILES = [[28, 56], [56, 28], [56, 56]]
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaNextVideoForConditionalGeneration"], "text_config": TEXT,
    "vision_config": CLIP, "image_grid_pinpoints": TILES, "image_token_index": IMAGE,
    "video_token_index": VIDEO, "dtype": "float32",
}  # fmt: skip
QWEN: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    **TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "rope_theta": 1e4,
    "vision_config": {
        "depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 4, "patch_size": 4,
        "window_size": 24, "out_hidden_size": 32, "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    },
    "image_token_id": IMAGE, "video_token_id": VIDEO, "dtype": "float32",
}  # fmt: skip
FILES: dict[str, dict[str, Any]] = {
    "llava": {
        "image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": TILES,
        "size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28},
    },
    "qwen": {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4,
        "min_pixels": 8 * 8 * 4, "max_pixels": 8 * 8 * 40,
    },
}  # fmt: skip


def write_model(directory: Path, kind: str = "llava", **changes: Any) -> str:
    """A model directory without weights, ``kind`` "llava" or "qwen". Returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"llava": LLAVA, "qwen": QWEN}[kind]
    files: dict[str, Any] = {
        "config.json": {**config, **changes},
        "preprocessor_config.json": FILES[kind],
        "tokenizer.json": _tokenizer(),
        "processor_config.json": {"image_token": "<image>", "video_token": "<video>"},
    }
    for name, values in files.items():
        (directory / name).write_text(json.dumps(values))
    (directory / "tokenizer_config.json").write_bytes(
        (EMBEDDED / "tokenizer_config.json").read_bytes()
    )
    return str(directory)


def _tokenizer() -> dict[str, Any]:
    layout: dict[str, Any] = json.loads((EMBEDDED / "tokenizer.json").read_text())
    like = layout["added_tokens"][0]
    for token, text in ((IMAGE, "<image>"), (VIDEO, "<video>")):
        layout["added_tokens"].append({**like, "id": token, "content": text})
    return layout


def picture(width: int = 28, height: int = 28, seed: int = 0) -> bytes:
    """A PNG file of noise."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = BytesIO()
    Image.fromarray(values).save(out, "PNG")
    return out.getvalue()


def movie(frames: int = 4, width: int = 28, height: int = 28, seed: int = 0) -> bytes:
    """A GIF file, which is read as a video."""
    r = np.random.default_rng(seed)
    shown = [
        Image.fromarray(r.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for _ in range(frames)
    ]
    out = BytesIO()
    shown[0].save(out, "GIF", save_all=True, append_images=shown[1:], duration=100)
    return out.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
