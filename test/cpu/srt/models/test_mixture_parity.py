"""Mixture of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE; ties in routing included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hf_models
from helpers.parity import Case, check

QWEN: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

CASES = [
    Case("MixtralForCausalLM", {"num_local_experts": 4}),
    Case(
        "MixtralForCausalLM",
        {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 7},
        seed=1, old_style=True,
    ),
    Case("Qwen2MoeForCausalLM", {
        **QWEN, "shared_expert_intermediate_size": 20, "num_hidden_layers": 3,
        "mlp_only_layers": [1], "use_sliding_window": True, "sliding_window": 9}),
    Case("Qwen3MoeForCausalLM", {
        **QWEN, "head_dim": 16, "num_hidden_layers": 3, "decoder_sparse_step": 2,
        "norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 5}),
    Case("OlmoeForCausalLM", {"num_experts": 5, "num_experts_per_tok": 2}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parity(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_ties_in_routing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of eight experts have the same logit, 0, for every token. transformers takes those that
    ``torch.topk`` happens to give; here, as everywhere, the first ones."""

    def first(x: torch.Tensor, k: int, dim: int = -1, **_: Any) -> Any:
        values, indices = x.sort(dim=dim, descending=True, stable=True)
        return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)

    case = Case("Qwen3MoeForCausalLM", {**QWEN, "num_experts": 8})
    model = hf_models.make(case.architecture, **case.settings)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight[[0, 2, 3, 5, 7]] = 0
    monkeypatch.setattr(torch, "topk", first)
    check(case, tmp_path, model)
