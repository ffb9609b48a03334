"""GPT-2, GPT-NeoX and StarCoder2: LayerNorm and plain feed-forward layers, learned positions, fused
and transposed weights, parallel sublayers; names with and without their prefix."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import hf_models
from helpers.paged import Paged, Sequence
from helpers.parity import Case, check
from safetensors.torch import load_file, save_file

FREE = {"tie_word_embeddings": False, "initializer_range": 0.6}
CASES = [
    Case("GPT2LMHeadModel", FREE),
    Case("GPT2LMHeadModel", {**FREE, "n_inner": 24, "activation_function": "relu"}, 1),
    Case(
        "GPTNeoXForCausalLM",
        {
            # As wide as all heads: what is attended must outlive the other branch.
            "intermediate_size": 32,
            "initializer_range": 0.6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000.0,
                "partial_rotary_factor": 0.5,
            },
        },
        2,
    ),
    Case(
        "GPTNeoXForCausalLM",
        {
            "use_parallel_residual": False,
            "initializer_range": 0.6,
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.25,
            },
        },
        3,
    ),
    Case("Starcoder2ForCausalLM", {**FREE, "sliding_window": 7}, 6),
    Case("Starcoder2ForCausalLM", {**FREE, "use_bias": False, "num_key_value_heads": 1}, 5),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gpt(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_names_without_their_prefix_are_known(tmp_path: Path) -> None:
    """The files of the first release have such names, and buffers too."""
    model = hf_models.make("GPT2LMHeadModel", 2)
    path = Path(hf_models.save(model, tmp_path))
    tensors = load_file(path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    save_file(bare, path / "model.safetensors")
    paged, sequence = Paged(str(path), 1, 0), Sequence([5, 6, 7])
    paged.advance([(sequence, 3)])
    assert (sequence.result - hf_models.logits(model, [5, 6, 7])).abs().max() < 1e-4
