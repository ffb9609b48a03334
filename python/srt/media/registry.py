"""Registry: architectures that see, and their processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang.srt.media.llava import (
    LlavaNextProcessor,
    LlavaNextVideoProcessor,
    LlavaOnevisionProcessor,
    LlavaProcessor,
)
from sglang.srt.media.processor import Processor
from sglang.srt.media.qwen import QwenProcessor
from sglang.srt.media.settings import Files, Settings

PROCESSORS: dict[str, type[LlavaProcessor] | type[QwenProcessor]] = {
    "LlavaForConditionalGeneration": LlavaProcessor,
    "LlavaNextForConditionalGeneration": LlavaNextProcessor,
    "LlavaNextVideoForConditionalGeneration": LlavaNextVideoProcessor,
    "LlavaOnevisionForConditionalGeneration": LlavaOnevisionProcessor,
    "Qwen2_5_VLForConditionalGeneration": QwenProcessor,
}


def processor_of(directory: Path, config: dict[str, Any]) -> Processor | None:
    """As ``Processor.of``."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if not isinstance(name, str) or name not in PROCESSORS:
        return None
    settings = Settings(config, str(directory / "config.json"))
    return PROCESSORS[name](settings, Files.of(directory))
