"""Architectures that differ from Llama in a few details."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.parity import Case, check

# LongRoPE's factors for heads of eight dimensions. With an original length of two tokens every text
# is a long one to transformers too, which decides by each text's length.
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.3, 2.0],
    "long_factor": [1.2, 1.9, 3.5, 8.0], "original_max_position_embeddings": 2,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
SHORT = {"max_position_embeddings": 256, "original_max_position_embeddings": 64}
LAYERS3 = ["sliding_attention", "full_attention", "sliding_attention"]
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.22,
    "logits_scaling": 3.0,
}  # fmt: skip

CASES = [
    Case("Phi3ForCausalLM", {"sliding_window": None}),
    Case("Phi3ForCausalLM", {"sliding_window": 9, "num_key_value_heads": 4}, 1),
    Case("Phi3ForCausalLM", {
        "sliding_window": 262144, "rope_parameters": LONG, "original_max_position_embeddings": 2,
        "tie_word_embeddings": True}, 2, old_style=True),
    Case("Phi3ForCausalLM", {
        "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, **SHORT,
        "rope_parameters": {**LONG, "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 64}}, 3, options={"context_length": 64}),
    Case("Olmo2ForCausalLM", {}, 4),
    Case("Olmo2ForCausalLM", {"attention_bias": True, "num_key_value_heads": 1,
        "rope_parameters": YARN}, 1),
    Case("Olmo3ForCausalLM", {"num_hidden_layers": 4, "sliding_window": 7}),
    Case("Olmo3ForCausalLM", {"num_hidden_layers": 3, "sliding_window": 5, "layer_types": LAYERS3,
        "rope_parameters": {"full_attention": YARN, "sliding_attention": {
            "rope_type": "default", "rope_theta": 300.0}}}, 1),
    Case("SmolLM3ForCausalLM", {"num_hidden_layers": 4}),
    Case("SmolLM3ForCausalLM", {"no_rope_layers": [0, 1], "tie_word_embeddings": False,
        "use_sliding_window": True, "sliding_window": 6, "attention_bias": True}, 1),
    Case("GraniteForCausalLM", GRANITE),
    Case("GraniteForCausalLM", {**GRANITE, "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True, "residual_multiplier": 1.7}, 3),
    Case("CohereForCausalLM", {"logit_scale": 0.5}),
    Case("CohereForCausalLM", {"logit_scale": 0.5, "use_qk_norm": True, "attention_bias": True,
        "tie_word_embeddings": False}, 1),
    Case("Cohere2ForCausalLM", {"logit_scale": 0.5, "num_hidden_layers": 4, "sliding_window": 7}),
    Case("Cohere2ForCausalLM", {"logit_scale": 0.5, "num_hidden_layers": 3, "sliding_window": 5,
        "layer_types": LAYERS3, "attention_bias": True}, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parity(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
