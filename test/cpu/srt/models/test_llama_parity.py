"""Llama and its nearest kin, with every RoPE scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.parity import Case, check

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn-mscale": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 4.0,
        "original_max_position_embeddings": 32, "mscale": 1.3, "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    },
}  # fmt: skip


def case(
    architecture: str, rope: str, old_style: bool, seed: int, settings: dict[str, Any]
) -> Case:
    settings = {"rope_parameters": ROPES[rope], **settings}
    return Case(architecture, settings, seed, old_style, decoded=rope == "dynamic")


CASES = [
    case("LlamaForCausalLM", "default", False, 0, {}),
    case("LlamaForCausalLM", "default", True, 1, {
        "tie_word_embeddings": True, "num_key_value_heads": 4}),
    case("LlamaForCausalLM", "linear", True, 2, {"attention_bias": True, "mlp_bias": True}),
    case("LlamaForCausalLM", "dynamic", False, 3, {"max_position_embeddings": 16}),
    case("LlamaForCausalLM", "yarn", False, 4, {"head_dim": 16, "hidden_act": "gelu"}),
    case("LlamaForCausalLM", "yarn-mscale", True, 5, {"num_key_value_heads": 1}),
    case("LlamaForCausalLM", "llama3", True, 6, {"tie_word_embeddings": True}),
    case("MistralForCausalLM", "default", True, 7, {"sliding_window": None}),
    case("MistralForCausalLM", "default", False, 8, {"sliding_window": 7}),
    case("MistralForCausalLM", "llama3", False, 9, {
        "sliding_window": 1, "num_key_value_heads": 4}),
    case("Qwen2ForCausalLM", "default", True, 10, {"tie_word_embeddings": True}),
    case("Qwen2ForCausalLM", "yarn", False, 11, {
        "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    case("Qwen2ForCausalLM", "dynamic", True, 12, {"max_position_embeddings": 16}),
    case("Qwen3ForCausalLM", "default", False, 13, {"tie_word_embeddings": True, "head_dim": 16}),
    case("Qwen3ForCausalLM", "linear", False, 14, {
        "num_key_value_heads": 4, "attention_bias": True, "use_sliding_window": True,
        "sliding_window": 9, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    case("Qwen3ForCausalLM", "yarn", True, 15, {"num_key_value_heads": 1}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parity(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
