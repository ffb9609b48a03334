"""Gemma 2 and 3: soft caps, norms behind sublayers, windows crossed, two rotary embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.parity import Case, check

# Tied heads repeat a token for ever: what is embedded stands out in the states.
FREE = {"tie_word_embeddings": False}
SLIDING = {"sliding_window": 7, "num_hidden_layers": 4, **FREE}
YARN = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
CASES = [
    Case("Gemma2ForCausalLM", {
        **SLIDING, "query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0}),
    Case("Gemma2ForCausalLM", {
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 16,
        "sliding_window": 5, **FREE}, 1),
    Case("Gemma3ForCausalLM", {**SLIDING, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": YARN, "sliding_attention": {
            "rope_type": "default", "rope_theta": 100.0}}}, 2),
    Case("Gemma3ForCausalLM", {"sliding_window": 3, "num_key_value_heads": 1, **FREE}, 3),
    Case("Gemma3ForConditionalGeneration", {"sliding_window": 5, **FREE}, 4),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gemma(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
