"""DeepSeek-V2 and V3: latents in the cache, groups of experts, shared experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import hf_models
from helpers.paged import Paged
from helpers.parity import Case, check, hold_bits, hold_shared_prefix
from sglang.srt.models.model_spec import read_config
from sglang.srt.models.registry import lookup
from sglang.srt.numeric.host_arrays import storage_key

SIZES: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": None, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10, "v_head_dim": 6, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 16, "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 4.0,
    "original_max_position_embeddings": 32, "mscale": 0.9, "mscale_all_dim": 0.7,
}  # fmt: skip

CASES = [
    Case("DeepseekV2ForCausalLM", SIZES),
    Case("DeepseekV2ForCausalLM", {
        **SIZES, "q_lora_rank": 14, "attention_bias": True, "topk_method": "group_limited_greedy",
        "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7, "rope_parameters": YARN},
        seed=1, old_style=True),
    Case("DeepseekV3ForCausalLM", {
        **SIZES, "q_lora_rank": 20, "n_group": 4, "topk_group": 2, "rope_parameters": YARN,
        "num_hidden_layers": 3}),
    Case("DeepseekV3ForCausalLM", {
        **SIZES, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "rope_interleave": False,
        "first_k_dense_replace": 0, "n_shared_experts": 1}, seed=1),
]  # fmt: skip


def model_of(case: Case) -> Any:
    model = hf_models.make(case.architecture, case.seed, **case.settings)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0.0, 0.2)
    return model


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parity(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path, model_of(case))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("deepseek")
    return hf_models.save(model_of(CASES[2]), directory)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_rows_read_latents_that_their_batch_writes(path: str, kernels: str, page_size: int) -> None:
    paged = Paged(path, page_size, 1, cpu_kernels=kernels)
    hold_shared_prefix(paged, model_of(CASES[2]), page_size)


@pytest.mark.parametrize("settings", [
    {}, {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}, {"dtype": "bfloat16"},
    {"quantization": "int8"},
], ids=str)  # fmt: skip
def test_a_row_has_the_same_bits_in_every_batch(path: str, settings: dict[str, Any]) -> None:
    hold_bits(Paged(path, 1, 2, cpu_kernels="native", **settings))


def test_a_token_takes_the_memory_of_its_latent(path: str) -> None:
    for dtype, each in (("auto", 20 * 4), ("int8", 20 + 4), ("fp8", 20)):
        paged = Paged(path, 1, 0, kv_cache_dtype=dtype)
        pool = paged.worker.runner.pool
        assert paged.worker.info["kv_bytes_per_token"] == 3 * each
        held = dict[int, int]()  # values are views of their keys
        for x in (*pool.keys, *pool.values, *(s for pair in pool.scales for s in pair)):
            key = storage_key(x)
            held[key] = max(held.get(key, 0), x.nbytes)
        assert sum(held.values()) == 3 * each * (pool.capacity + 1)


@pytest.mark.parametrize(
    ("architecture", "settings", "message"),
    [
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob is True; weights of"),
        (
            "DeepseekV2ForCausalLM",
            {"topk_method": "noaux_tc", "norm_topk_prob": False},
            "must be greedy or group_limited",
        ),
        ("DeepseekV3ForCausalLM", {"n_group": 3}, "n_group is 3; it must divide the 8 experts"),
        ("DeepseekV3ForCausalLM", {"n_group": 8, "topk_group": 2}, "3 experts must fit into"),
        ("DeepseekV3ForCausalLM", {"qk_rope_head_dim": 7}, "must be even"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    ],
)
def test_what_cannot_be_is_refused(
    architecture: str, settings: dict[str, Any], message: str, path: str
) -> None:
    fields, _ = read_config(Path(path))
    fields.values |= settings
    with pytest.raises(ValueError, match=message):
        lookup(architecture).read(fields, architecture)
