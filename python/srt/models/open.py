"""From a model directory to its checkpoint."""

from __future__ import annotations

from pathlib import Path

from srt.models.checkpoint import Checkpoint
from srt.models.config import Fields
from srt.models.safetensors import SafetensorsCheckpoint


def open_checkpoint(directory: Path, config: Fields) -> Checkpoint:
    """The tensors of a model directory as ``config.json`` says they are stored; only headers are
    read. Raises ValueError where they cannot be used."""
    return SafetensorsCheckpoint(directory)
