"""From a model directory to its checkpoint."""

from __future__ import annotations

from pathlib import Path

from sglang.srt.models.checkpoint import Checkpoint
from sglang.srt.models.config import Fields
from sglang.srt.models.formats.open import open_directory
from sglang.srt.models.gguf.checkpoint import GgufCheckpoint
from sglang.srt.models.gguf.config import GgufFields


def open_checkpoint(directory: Path, config: Fields) -> Checkpoint:
    """The tensors of a model directory as ``config.json`` says they are stored; only headers are
    read. Raises ValueError where they cannot be used."""
    if isinstance(config, GgufFields):
        return GgufCheckpoint(config)
    return open_directory(directory, config)
