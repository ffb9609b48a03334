"""Setup of the reader of images and videos, for a model with a vision tower."""

from __future__ import annotations

import json

from sglang.srt.config import Config
from sglang.srt.engine.info import EngineInfo
from sglang.srt.files.location import locate
from sglang.srt.requests.media_input.media_loading import MediaError, Viewer
from sglang.srt.tokenizer import Tokenizer

AROUND = ("<|vision_start|>", "<|vision_end|>")  # Qwen models put these around a placeholder


def written(viewer: Viewer, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the placeholder texts of an image and of a video in a prompt, by kind."""
    found = {}
    for kind in ("image", "video"):
        token = viewer.token(kind)
        around = token.text.endswith("_pad|>") and tokenizer.id_of(AROUND[0]) is not None
        if token.id >= 0:
            found[kind] = token.text.join(AROUND) if around else token.text
    return found


def viewer_of(config: Config, info: EngineInfo) -> Viewer | None:
    """Return the reader of images and videos; None for a model without a vision tower. Raises
    MediaError if the model's files do not say how images are read."""
    if not info.vision:
        return None
    from sglang.srt.media.processor_registry import processor_of

    try:
        directory = locate(config.model.model_path, config.model.revision)
        fields = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        processor = processor_of(directory, fields)
    except (OSError, ValueError) as error:
        raise MediaError(f"how the model reads images is unknown: {error}") from error
    if processor is None:
        raise MediaError(f"{info.architecture} reads images, but there is no processor for them")
    return Viewer(processor, config.media, info.vocab_size)
