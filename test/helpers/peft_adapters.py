"""Random adapters in PEFT's layout, and models with one merged into their weights: W + s B A, by
the formula alone."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def modules_of(model: Any, targets: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of every module that is called so."""
    found = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            shape = tuple(module.weight.shape)
            found[name] = shape[::-1] if type(module).__name__ == "Conv1D" else shape
    return found


def make_adapter(
    model: Any, directory: Path, seed: int, *, targets: tuple[str, ...] = LLAMA, rank: int = 4,
    dtype: torch.dtype = torch.float32, **config: Any,
) -> str:  # fmt: skip
    """An adapter that changes the model's text. ``config``: further entries of the file."""
    generator = torch.Generator().manual_seed(seed)
    settings = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets),
        "bias": "none", **config,
    }  # fmt: skip
    tensors = {}
    for name, (outputs, inputs) in modules_of(model, targets).items():
        own = int(pattern(settings.get("rank_pattern", {}), name) or rank)
        for half, shape in (("A", (own, inputs)), ("B", (outputs, own))):
            values = torch.randn(shape, generator=generator) * shape[1] ** -0.5 * 0.6
            tensors[f"base_model.model.{name}.lora_{half}.weight"] = values.to(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, directory / "adapter_model.safetensors")
    return str(directory)


def pattern(table: dict[str, float], name: str) -> float | None:
    """Value for one name in a table of module names."""
    matches = (v for k, v in table.items() if re.fullmatch(rf"(.*\.)?({k.lstrip('^')})", name))
    return next(matches, None)


@torch.no_grad()
def merged(model: Any, directory: str | Path) -> Any:
    """A copy of the model with the adapter in its weights."""
    from safetensors.torch import load_file

    model = copy.deepcopy(model)
    settings = json.loads((Path(directory) / "adapter_config.json").read_text())
    tensors = load_file(Path(directory) / "adapter_model.safetensors")
    for name, module in model.named_modules():
        a = tensors.get(f"base_model.model.{name}.lora_A.weight")
        if a is None:
            continue
        b = tensors[f"base_model.model.{name}.lora_B.weight"]
        rank = pattern(settings.get("rank_pattern", {}), name) or settings["r"]
        alpha = pattern(settings.get("alpha_pattern", {}), name)
        alpha = settings["lora_alpha"] if alpha is None else alpha
        scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        delta = scale * b.double() @ a.double()
        if type(module).__name__ == "Conv1D":
            delta = delta.T
        module.weight.copy_(module.weight.double() + delta)
    return model
