"""Read the files that `export` writes."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file

from tools.train_tiny.model import Shape, TinyLlama


def load_exported(folder: Path) -> TinyLlama:
    """Read an exported folder back, in float32: what is evaluated is what ships."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = Shape(**{name: config[name] for name in Shape().to_dict()})
    model = TinyLlama(shape)
    weights = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model
