"""Shapes: the models that are measured, with random weights, at the sizes of published ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """A Llama decoder, or with ``experts`` a Qwen3-MoE one.

    Attributes:
        like: the published model of these sizes.
        inner: width of the feed-forward layers, or of one expert.
        experts: number of experts of a layer and how many a token takes; none: (0, 0).
        goals: percent of the bound that passes are to reach, by pass.
    """

    name: str
    like: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    tied: bool
    experts: tuple[int, int] = (0, 0)
    goals: tuple[tuple[str, int], ...] = ()

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Products of a layer and the head's: outputs and inputs by name."""
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        found = {"qkv": (rows, self.hidden), "out": (self.hidden, self.heads * self.head_dim)}
        if not self.experts[0]:
            found |= {
                "gate_up": (2 * self.inner, self.hidden), "down": (self.hidden, self.inner)
            }  # fmt: skip
        return found | {"head": (self.vocab, self.hidden)}

    @property
    def head(self) -> int:
        """Parameters of the language model's head."""
        return self.hidden * self.vocab

    def linear(self, tokens: int = 0) -> int:
        """Parameters of the layers that one token is multiplied with; with ``tokens``, those that
        so many tokens read in all (of experts the expected number)."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        count, chosen = self.experts
        if not count:
            return self.layers * (attention + 3 * self.hidden * self.inner)
        read = count * (1 - (1 - chosen / count) ** tokens) if tokens else chosen
        return int(self.layers * (attention + read * 3 * self.hidden * self.inner))

    @property
    def token_values(self) -> int:
        """Keys and values that all layers keep of a token, in numbers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def config(self, dtype: str, context: int) -> dict[str, Any]:
        """Contents of config.json."""
        made = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "intermediate_size": self.inner, "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "max_position_embeddings": context, "eos_token_id": 0, "torch_dtype": dtype,
        }  # fmt: skip
        if self.experts[0]:
            made |= {
                "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                "num_experts": self.experts[0], "num_experts_per_tok": self.experts[1],
                "moe_intermediate_size": self.inner, "norm_topk_prob": True,
            }  # fmt: skip
        return made


SHAPES = (
    ModelShape(
        "1 B", "Llama 3.2 1B", 2048, 16, 32, 8, 64, 8192, 128256, True,
        goals=(("decode 1", 75), ("decode 32", 65), ("decode 256", 70), ("prefill", 70)),
    ),
    ModelShape(
        "8 B", "Llama 3.1 8B", 4096, 32, 32, 8, 128, 14336, 128256, False,
        goals=(("decode 1", 88), ("decode 32", 82), ("decode 256", 75), ("prefill", 78)),
    ),
    ModelShape("14 B", "Qwen3 14B", 5120, 40, 40, 8, 128, 17408, 151936, False),
    ModelShape("32 B", "Qwen3 32B", 5120, 64, 64, 8, 128, 25600, 151936, False),
    ModelShape("MoE", "Qwen3 30B-A3B", 2048, 48, 32, 4, 128, 768, 151936, False, (128, 8)),
)  # fmt: skip
# An eighth of the layers of the last one: its weights take 8 GB and not 61.
MOE_PART = ModelShape(
    "MoE, 6 of 48 layers", "Qwen3 30B-A3B", 2048, 6, 32, 4, 128, 768, 151936, False, (128, 8)
)
TINY = ModelShape("toy", "nothing", 64, 2, 4, 2, 16, 96, 160, True, goals=(("decode 1", 75),))
TINY_MOE = ModelShape("toy MoE", "nothing", 32, 1, 2, 1, 16, 16, 160, False, (4, 2))
