"""Models to measure with: the embedded one, or Llama shapes with random weights made here.

Random weights are as fast as trained ones. They are generated from a seed and saved like any
checkpoint, so that a peer loads the very same.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EMBEDDED = Path(__file__).resolve().parent.parent / "python" / "srt" / "assets" / "sglang-tiny"


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama decoder with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int = 32000
    context: int = 8192

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        attention = 2 * self.hidden * self.head * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.vocab * self.hidden + self.layers * layer + self.hidden


# 15.7, 154 and 508 million parameters; heads of 64, which every peer has. T is for tests.
SHAPES = {
    "T": Shape(hidden=64, layers=2, heads=2, kv_heads=1, inner=128, vocab=512, context=2048),
    "S": Shape(hidden=256, layers=9, heads=4, kv_heads=2, inner=832),
    "M": Shape(hidden=768, layers=18, heads=12, kv_heads=4, inner=2432),
    "L": Shape(hidden=1280, layers=20, heads=20, kv_heads=4, inner=5056),
}


def cached(root: Path, name: str, dtype: str = "bfloat16") -> Path:
    """Folder below ``root`` with ``SHAPES[name]``, made if it is not there.

    Raises KeyError for an unknown name.
    """
    shape = SHAPES[name]
    # The sizes are in the name, so that another shape never passes for this one.
    sizes = f"{shape.hidden}x{shape.layers}x{shape.heads}x{shape.kv_heads}x{shape.inner}"
    folder = root / f"{name}-{sizes}-{dtype}"
    return once(folder, lambda half: make(half, shape, dtype))


def resolved(name: str, folder: Path, dtype: str = "float32", seed: int = 0) -> str:
    """Folder of the model that an option names: of ``SHAPES``, made in ``folder``; "embedded"; else
    a checkpoint's own."""
    if name in SHAPES:
        return str(make(folder / name, SHAPES[name], dtype, seed))
    return str(EMBEDDED) if name == "embedded" else name


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """``folder``, made by ``make`` if it is not there: whole or not at all."""
    if not folder.is_dir():
        half = folder.with_name(f"{folder.name}.{os.getpid()}.half")
        make(half)
        try:
            half.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(half)
    return folder


def make(folder: Path, shape: Shape, dtype: str = "float32", seed: int = 0) -> Path:
    """Write ``shape`` with random weights and a byte tokenizer to ``folder``, which is returned.

    Weights are normal and norms one. Embeddings have deviation 0.02, the layers' weights the
    inverse root of their inputs: so what the layers add outweighs the embedding, and the head,
    which is tied to it, does not merely repeat the last token. ``dtype`` is a torch dtype's name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save(folder, shape, dtype, draw(shape, dtype, seed))
    write_tokenizer(folder, shape.vocab)
    return folder


def draw(shape: Shape, dtype: str, seed: int) -> dict[str, Any]:
    """Tensors of a checkpoint, by name; the head is tied to the embedding."""
    import torch

    random = torch.Generator().manual_seed(seed)
    kind: torch.dtype = getattr(torch, dtype)

    def normal(rows: int, inputs: int) -> torch.Tensor:
        spread: float = inputs**0.5
        return (torch.randn(rows, inputs, generator=random) / spread).to(kind)

    width, kv = shape.hidden, shape.head * shape.kv_heads
    embedding = 0.02 * torch.randn(shape.vocab, width, generator=random)
    weights = {"model.embed_tokens.weight": embedding.to(kind)}
    for i in range(shape.layers):
        at = f"model.layers.{i}"
        weights |= {
            f"{at}.input_layernorm.weight": torch.ones(width, dtype=kind),
            f"{at}.self_attn.q_proj.weight": normal(width, width),
            f"{at}.self_attn.k_proj.weight": normal(kv, width),
            f"{at}.self_attn.v_proj.weight": normal(kv, width),
            f"{at}.self_attn.o_proj.weight": normal(width, width),
            f"{at}.post_attention_layernorm.weight": torch.ones(width, dtype=kind),
            f"{at}.mlp.gate_proj.weight": normal(shape.inner, width),
            f"{at}.mlp.up_proj.weight": normal(shape.inner, width),
            f"{at}.mlp.down_proj.weight": normal(width, shape.inner),
        }
    weights["model.norm.weight"] = torch.ones(width, dtype=kind)
    return weights


def save(folder: Path, shape: Shape, dtype: str, weights: Mapping[str, Any], end: int = 0) -> None:
    """Write the weights and their config to ``folder``, the tokenizer left out. ``end`` is the end
    token's id; the head is tied if the weights have no ``lm_head.weight``."""
    from safetensors.torch import save_file

    save_file(dict(weights), str(folder / "model.safetensors"), metadata={"format": "pt"})
    tied = "lm_head.weight" not in weights
    ends = {"bos_token_id": 0, "eos_token_id": end}
    config = {**_config(shape, dtype), "tie_word_embeddings": tied, **ends}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", ends)


def write_tokenizer(folder: Path, vocab: int) -> None:
    """A byte tokenizer; ids above the bytes' are words that no text becomes."""
    write_json(folder / "tokenizer.json", _tokenizer(vocab))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _config(shape: Shape, dtype: str) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": dtype,
    }


def _tokenizer(vocab: int) -> dict[str, object]:
    """Byte-level BPE without merges: bytes are tokens 1 to 256, then words that no text becomes."""
    names = ["<end>", *byte_letters(), *(f"Ġw{i}" for i in range(vocab - 257))]
    end = {
        "id": 0, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True,
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
            "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "byte_fallback": False, "ignore_merges": False,
            "vocab": {name: i for i, name in enumerate(names)}, "merges": [],
        },
    }  # fmt: skip


def byte_letters() -> list[str]:
    """The visible letter that byte-level tokenizers write for each byte, in order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in plain)
    letters = {byte: chr(byte) for byte in plain}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]
