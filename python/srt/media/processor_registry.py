"""Registry: multimodal architectures and their processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang.srt.media.llava_processor import (
    LlavaNextProcessor,
    LlavaNextVideoProcessor,
    LlavaOnevisionProcessor,
    LlavaProcessor,
)
from sglang.srt.media.processor import Processor
from sglang.srt.media.processor_settings import Settings, SettingsFiles
from sglang.srt.media.qwen_processor import QwenProcessor

PROCESSORS: dict[str, type[LlavaProcessor] | type[QwenProcessor]] = {
    "LlavaForConditionalGeneration": LlavaProcessor,
    "LlavaNextForConditionalGeneration": LlavaNextProcessor,
    "LlavaNextVideoForConditionalGeneration": LlavaNextVideoProcessor,
    "LlavaOnevisionForConditionalGeneration": LlavaOnevisionProcessor,
    "Qwen2_5_VLForConditionalGeneration": QwenProcessor,
}


def processor_of(directory: Path, config: dict[str, Any]) -> Processor | None:
    """The processor of a model directory with ``config.json`` ``config``; None for a text model.
    Raises ValueError where its settings cannot be read or do not fit."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if not isinstance(name, str) or name not in PROCESSORS:
        return None
    settings = Settings(config, str(directory / "config.json"))
    return PROCESSORS[name](settings, SettingsFiles.of(directory))
