"""A dense model and mixtures of experts of the same active size: the layers apply as many
parameters to a token in each. Only configs: random weights are made as they are loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmark.models import write_tokenizer

HEAD = 64  # dimensions of a head


@dataclass(frozen=True)
class Sizes:
    """Sizes of the dense model, bfloat16; ``inner`` is divided among the experts of a token."""

    width: int
    layers: int
    inner: int
    vocab: int


@dataclass(frozen=True)
class Experts:
    """Experts of a layer, and those that a token goes through; none at all in a dense model."""

    count: int = 0
    top_k: int = 1

    @property
    def name(self) -> str:
        return f"{self.count} experts, {self.top_k} chosen" if self.count else "dense"

    def parameters(self, sizes: Sizes) -> tuple[int, int]:
        """Parameters of the layers: all, and those that a token goes through."""
        heads = sizes.width // HEAD
        attention = 2 * sizes.width * HEAD * (heads + max(heads // 4, 1))
        active = 3 * sizes.width * sizes.inner
        every = active * max(self.count, 1) // self.top_k
        rest = attention + sizes.width * self.count
        return sizes.layers * (rest + every), sizes.layers * (rest + active)


def make(folder: Path, sizes: Sizes, experts: Experts) -> Path:
    """Writes ``folder``, which is returned."""
    folder.mkdir(parents=True)
    heads = sizes.width // HEAD
    config: dict[str, object] = {
        "architectures": ["MixtralForCausalLM" if experts.count else "LlamaForCausalLM"],
        "hidden_size": sizes.width,
        "intermediate_size": sizes.inner // experts.top_k,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(heads // 4, 1),
        "vocab_size": sizes.vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    if experts.count:
        config |= {"num_local_experts": experts.count, "num_experts_per_tok": experts.top_k}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tokenizer(folder, sizes.vocab)
    return folder
