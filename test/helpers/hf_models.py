"""Small random models of the transformers library, as checkpoints and as references."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor


def _gpt2(hidden_size: int, num_hidden_layers: int, num_attention_heads: int, **rest: Any) -> Any:
    sizes: dict[str, Any] = {
        "n_embd": hidden_size,
        "n_layer": num_hidden_layers,
        "n_head": num_attention_heads,
    }
    sizes |= {"n_positions": rest.pop("max_position_embeddings")}
    for key in ("intermediate_size", "num_key_value_heads", "head_dim"):
        rest.pop(key)
    return transformers.GPT2Config(**sizes, **rest)


def _gemma3(**text: Any) -> Any:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
    return transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4,
        tie_word_embeddings=text.get("tie_word_embeddings", True), image_token_index=96,
        initializer_range=text["initializer_range"],
    )  # fmt: skip


def _neox(num_key_value_heads: int, head_dim: int, **settings: Any) -> Any:
    return transformers.GPTNeoXConfig(**settings)


# Makers of configs from an architecture of SMALL and a test's settings: a class, or a function
# where the config has several parts (text and vision). One line each, by name.
CONFIGS: dict[str, Callable[..., Any]] = {
    "CohereForCausalLM": transformers.CohereConfig,
    "Cohere2ForCausalLM": transformers.Cohere2Config,
    "GraniteForCausalLM": transformers.GraniteConfig,
    "Olmo2ForCausalLM": transformers.Olmo2Config,
    "Olmo3ForCausalLM": transformers.Olmo3Config,
    "Phi3ForCausalLM": transformers.Phi3Config,
    "SmolLM3ForCausalLM": transformers.SmolLM3Config,
    "LlamaForCausalLM": transformers.LlamaConfig,
    "MistralForCausalLM": transformers.MistralConfig,
    "MixtralForCausalLM": transformers.MixtralConfig,
    "Qwen2ForCausalLM": transformers.Qwen2Config,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
    "Qwen2MoeForCausalLM": transformers.Qwen2MoeConfig,
    "Qwen3MoeForCausalLM": transformers.Qwen3MoeConfig,
    "OlmoeForCausalLM": transformers.OlmoeConfig,
    "DeepseekV2ForCausalLM": transformers.DeepseekV2Config,
    "DeepseekV3ForCausalLM": transformers.DeepseekV3Config,
    "GptOssForCausalLM": transformers.GptOssConfig,
    "GPT2LMHeadModel": _gpt2,
    "GPTNeoXForCausalLM": _neox,
    "Starcoder2ForCausalLM": transformers.Starcoder2Config,
    "Gemma2ForCausalLM": transformers.Gemma2Config,
    "Gemma3ForCausalLM": transformers.Gemma3TextConfig,
    "Gemma3ForConditionalGeneration": _gemma3,
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


def config(architecture: str, **settings: Any) -> Any:
    """Config of a small model."""
    return CONFIGS[architecture](**{**SMALL, **settings})


def make(architecture: str, seed: int = 0, **settings: Any) -> Any:
    """A float32 model in which every weight is random, biases and gains included."""
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config(architecture, **settings)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                gain = name.endswith("weight") and ("norm" in name or ".ln_" in name)
                weight.normal_(1.0 if gain else 0.0, 0.3)
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


@torch.no_grad()
def greedy(model: Any, prompt: list[int], count: int, cached: bool = False) -> list[int]:
    """``count`` tokens after the prompt, without a cache (that of transformers keeps too much for a
    window of one token); ``cached``: over a cache, the prompt too token by token."""
    ids = torch.tensor([prompt])
    if not cached:
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
            use_cache=False,
        )  # fmt: skip
        return out[0, len(prompt) :].tolist()
    cache, tokens = None, list(prompt)
    for i in range(len(prompt) + count - 1):
        step = model(torch.tensor([[tokens[i]]]), past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        if i == len(tokens) - 1:
            tokens.append(int(step.logits[0, 0].argmax()))
    return tokens[len(prompt) :]
