"""Small random models of the transformers library, as checkpoints and as references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

CONFIGS = {
    "LlamaForCausalLM": transformers.LlamaConfig,
    "MistralForCausalLM": transformers.MistralConfig,
    "Qwen2ForCausalLM": transformers.Qwen2Config,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
}
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.3,  # scores and logits far from uniform
}


def make(architecture: str, seed: int = 0, **settings: Any) -> Any:
    """A float32 model in which every weight is random, biases and gains included."""
    config = CONFIGS[architecture](**{**SMALL, **settings})
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.normal_(1.0 if "norm" in name else 0.0, 0.3)
    return model


def save(model: Any, directory: Path, old_style: bool = False, **options: Any) -> str:
    """Write the checkpoint; ``old_style`` spells RoPE settings as releases before 5 did."""
    model.save_pretrained(directory, **options)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if old_style:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["torch_dtype"] = config.pop("dtype", "float32")
        kind = rope.pop("rope_type", "default")
        config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
        path.write_text(json.dumps(config))
    return str(directory)


@torch.no_grad()
def logits(model: Any, tokens: list[int], cached: bool = False) -> Tensor:
    """[len(tokens), vocab]; ``cached``: token by token over a KV cache."""
    ids = torch.tensor([tokens])
    if not cached:
        return model(ids, use_cache=False).logits[0]
    cache, rows = None, []
    for i in range(len(tokens)):
        out = model(ids[:, i : i + 1], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, 0])
    return torch.stack(rows)
