"""GPT-OSS: attention sinks, windows, experts with biases and clamped gates."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hf_models
from helpers.paged import Paged, Sequence
from helpers.parity import Case, check, compare, hold_bits
from safetensors.torch import save_file

SIZES: dict[str, Any] = {
    "num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 24,
    "sliding_window": 7, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "truncate": False,
        "original_max_position_embeddings": 16}}  # fmt: skip

CASES = [
    Case("GptOssForCausalLM", {**SIZES, "num_hidden_layers": 3}),
    Case("GptOssForCausalLM", {
        **SIZES, "head_dim": 16, "num_key_value_heads": 1, "num_experts_per_tok": 1,
        "layer_types": ["full_attention", "sliding_attention"], "attention_bias": False}, seed=1),
]  # fmt: skip


def model_of(case: Case) -> Any:
    """Experts' biases random, sinks as large as scores, gates far enough to be clamped."""
    model = hf_models.make(case.architecture, case.seed, **case.settings)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("proj_bias"):
                weight.normal_(0.0, 2.0)
            elif name.endswith("sinks"):
                weight.normal_(0.0, 1.5)
    return model


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parity(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path, model_of(case))


# Numbers of e2m1: a sign, two bits of exponent, one of fraction.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def published(model: Any, directory: Path) -> None:
    """Save with the experts as MXFP4, which they are set to, as GPT-OSS is published: blocks of 32
    inputs, two numbers a byte, the first in the lower half; a power of two for each."""
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, weight in model.state_dict().items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = weight.contiguous()
            continue
        experts, inputs, outputs = weight.shape
        codes = torch.randint(16, (experts, outputs, inputs), generator=generator)
        powers = torch.randint(123, 127, (experts, outputs, inputs // 32), generator=generator)
        for e in range(experts):
            for n in range(outputs):
                for k in range(inputs):
                    code = int(codes[e, n, k])
                    value = (-1) ** (code >> 3) * E2M1[code & 7]
                    weight[e, k, n] = value * 2.0 ** (int(powers[e, n, k // 32]) - 127)
        low, high = codes[..., ::2], codes[..., 1::2]
        blocks = (low | high << 4).to(torch.uint8).view(experts, outputs, -1, 16)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": powers.to(torch.uint8)}
    hf_models.save(model, directory)
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))


def test_experts_in_mxfp4_are_read_exactly(tmp_path: Path) -> None:
    settings = {**SIZES, "intermediate_size": 64, "num_local_experts": 3}
    model = model_of(Case("GptOssForCausalLM", settings, seed=2))
    published(model, tmp_path)
    text = [random.Random(2).randrange(97) for _ in range(30)]
    for kernels in ("native", "torch"):
        sequence = Sequence(text)
        Paged(str(tmp_path), 1, 0, cpu_kernels=kernels).advance([(sequence, len(text))])
        compare([sequence.result], [hf_models.logits(model, text)], kernels)


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}], ids=str)
def test_a_row_has_the_same_bits_in_every_batch(settings: dict[str, Any], tmp_path: Path) -> None:
    path = hf_models.save(model_of(CASES[0]), tmp_path)
    hold_bits(Paged(path, 1, 2, cpu_kernels="native", **settings))
