"""A model that is slow for its texts: the embedded one with more layers, which add nothing.

The deep model samples exactly the embedded model's tokens, and its pass costs as many times more as
it is deeper. So the embedded model is a draft model that is always right; its gain is the most that
any could reach at this ratio of costs. With fewer layers of its own, the draft model is often
wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copy

from benchmark.models import EMBEDDED

_SILENT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # a layer's output products


def of_depth(folder: Path, layers: int) -> Path:
    """Write the embedded model with so many layers to ``folder``, which is returned: without its
    upper ones, or with more that add nothing."""
    import torch
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((EMBEDDED / "config.json").read_text())
    own = config["num_hidden_layers"]
    found: dict[str, torch.Tensor] = {}
    for file in EMBEDDED.glob("*.safetensors"):
        found |= load_file(file)
    weights = {}
    for name, value in found.items():
        place = _layer(name)
        if place is None or place < layers:
            weights[name] = value
        if place == 0:
            for more in range(own, layers):
                other = name.replace(".layers.0.", f".layers.{more}.")
                silent = name.endswith(_SILENT)
                weights[other] = torch.zeros_like(value) if silent else value.clone()
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (EMBEDDED / name).exists():
            copy(EMBEDDED / name, folder / name)
    return folder


def _layer(name: str) -> int | None:
    _, _, rest = name.partition(".layers.")
    return int(rest.split(".")[0]) if rest else None
