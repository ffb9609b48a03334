"""Two processes over gloo compute what one does, and so do two pipeline stages."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sglang.srt.attention.attention_protocol import Layout
from sglang.srt.attention.native_attention import NativeAttention
from sglang.srt.layers.torch_writer import ForwardStep, forward
from sglang.srt.layers.weight import Place
from sglang.srt.models import weights
from sglang.srt.models.model_spec import read_config
from sglang.srt.models.registry import lookup
from sglang.srt.models.safetensors import SafetensorsCheckpoint
from sglang.srt.parallel.groups import Group
from sglang.srt.worker.kv import KVPool
from torch import Tensor
from torch.multiprocessing.spawn import spawn

TOKENS = [random.Random(1).randrange(96) for _ in range(12)]


def checkpoint(directory: Path, architecture: str, **settings: Any) -> str:
    # Imported here: the other ranks' processes import this file, and have no need of transformers.
    from helpers.hf_models import make, save

    return save(make(architecture, **settings), directory)


def build(path: str, group: Group, layers: range | None = None):
    """This rank's model and an attention over its own pool, with one row of TOKENS planned."""
    fields, architecture = read_config(Path(path))
    family = lookup(architecture)
    spec = family.read(fields, architecture)
    model: Any = family(spec, Place(torch.device("cpu"), torch.float32, group), 64, layers)
    found = SafetensorsCheckpoint(Path(path))
    weights.match(model.slots(), found, model.ignores)
    weights.load(model.slots(), found, show=False)
    kv = spec.kv if spec.kv.shared else replace(spec.kv, heads=spec.kv.heads // group.size)
    pool = KVPool(len(model.owned), kv, len(TOKENS), 1, torch.float32, torch.device("cpu"))
    attention = NativeAttention(pool.keys, pool.values, 1, spec.windows)
    positions = np.arange(len(TOKENS), dtype=np.int32)
    ends = np.array([0, len(TOKENS)], dtype=np.int32)
    attention.plan(Layout(ends[:1], ends[1:], ends, positions, positions))
    return model, attention, torch.from_numpy(positions)


def run(path: str, group: Group) -> Tensor:
    model, attention, positions = build(path, group)
    step = ForwardStep(positions, attention)
    return model.logits(forward(model, torch.tensor(TOKENS), step))


def rank_main(rank: int, paths: list[str], meeting: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.save(torch.stack([run(path, Group(rank, 2)) for path in paths]), f"{results}{rank}")
    dist.destroy_process_group()


def test_two_ranks_equal_one(tmp_path: Path) -> None:
    """Column and row parallel layers, split heads and vocabulary, biases added once."""
    cases = [
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "vocab_size": 96}),
        ("Qwen3ForCausalLM", {"tie_word_embeddings": True, "vocab_size": 96}),
        ("DeepseekV3ForCausalLM", {
            "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 14, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 10, "v_head_dim": 6, "n_routed_experts": 8, "topk_group": 2,
            "n_group": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
            "first_k_dense_replace": 1, "vocab_size": 96}),
        ("GptOssForCausalLM", {
            "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3,
            "vocab_size": 96}),
    ]  # fmt: skip
    paths = [checkpoint(tmp_path / name, name, **settings) for name, settings in cases]
    results = str(tmp_path / "rank")
    spawn(rank_main, (paths, str(tmp_path / "meeting"), results), nprocs=2)
    want = torch.stack([run(path, Group()) for path in paths])
    for rank in range(2):
        torch.testing.assert_close(torch.load(f"{results}{rank}"), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_two_stages_equal_one(tied: bool, tmp_path: Path) -> None:
    settings = {"num_hidden_layers": 3, "tie_word_embeddings": tied}
    path = checkpoint(tmp_path, "LlamaForCausalLM", **settings)
    hidden: Tensor = torch.tensor(TOKENS)
    for layers in (range(0, 2), range(2, 3)):
        model, attention, positions = build(path, Group(), layers)
        assert len(attention.key_pools) == len(layers)
        hidden = forward(model, hidden, ForwardStep(positions, attention))
    assert torch.equal(model.logits(hidden), run(path, Group()))


def test_a_group_that_cannot_share_says_so(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "LlamaForCausalLM", num_attention_heads=4)
    with pytest.raises(ValueError, match="num_attention_heads is 4, which 3 tensor-parallel"):
        build(path, Group(0, 3))
