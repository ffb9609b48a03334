"""Registry: architecture names, as checkpoints spell them, and the classes that implement them."""

from __future__ import annotations

import difflib

from srt.models.llama import LlamaForCausalLM
from srt.models.mistral import MistralForCausalLM
from srt.models.model import Model
from srt.models.qwen2 import Qwen2ForCausalLM
from srt.models.qwen3 import Qwen3ForCausalLM

MODELS: dict[str, type[Model]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
}


def lookup(architecture: str) -> type[Model]:
    """Raises ValueError, listing what is supported and the nearest kin, for an unknown name."""
    if architecture in MODELS:
        return MODELS[architecture]
    near = difflib.get_close_matches(architecture, MODELS, n=1, cutoff=0.5)
    kin = f" The nearest is {near[0]}." if near else ""
    raise ValueError(
        f"architecture {architecture!r} is not supported; supported are {', '.join(MODELS)}.{kin}"
    )
