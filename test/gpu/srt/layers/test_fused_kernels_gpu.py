"""Models with fused kernels against the same models by torch's operations."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import gpu_device
from helpers.gpu_device import DEVICE, DTYPE, EVERY_CASE, ON_GPU, worker_settings
from helpers.paged import Paged, Sequence
from helpers.tiny_model import write_config
from sglang.srt.attention.backend_choice import build
from sglang.srt.config.sections import LAYER_KERNELS
from sglang.srt.layers.kernel_trial import KernelTrial, TrialSizes
from sglang.srt.worker.graphs import Again, Graphs
from torch import Tensor

gpu_device.needs_device()
gpu_device.needs("triton")

SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "num_hidden_layers": 2,
}  # fmt: skip
# Architecture and settings; whether its rotation is fused.
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "qwen3": ("Qwen3ForCausalLM", {"attention_bias": True}, True),
    "gemma3": ("Gemma3ForCausalLM", {"sliding_window": 4, "query_pre_attn_scalar": 16}, True),
    "phi3": ("Phi3ForCausalLM", {"partial_rotary_factor": 0.75, "pad_token_id": 0}, True),
    "cohere": ("CohereForCausalLM", {}, True),
    "olmo2": ("Olmo2ForCausalLM", {}, False),
}
# Models that launch kernels of those above once more.
if EVERY_CASE:
    MODELS |= {
        "llama": ("LlamaForCausalLM", {}, True),
        "neox": ("GPTNeoXForCausalLM", {"rotary_pct": 0.5, "num_key_value_heads": 4}, True),
        "gpt2": ("GPT2LMHeadModel", {"num_key_value_heads": 4}, False),
    }
# Attention of the models without fused kernels: on a CPU torch's, without the interpreter.
EAGER = "triton" if ON_GPU else "native"
# ||a - b|| / ||b|| of logits: two layers of kernels, each within triton_place.TOLERANCES.
TOLERANCE = 3e-2 if ON_GPU else 1e-5


def logits(paged: Paged) -> Tensor:
    """Logits of prompts, of a pass of prompt and decode rows, and of a decode pass."""
    r = random.Random(3)
    long, short = (Sequence([r.randrange(128) for _ in range(n)]) for n in (6, 3))
    paged.advance([(long, 4)])
    paged.advance([(long, 1), (short, 2)])
    paged.advance([(long, 1), (short, 1)])
    return torch.cat([long.result, short.result]).double().cpu()


def paged(path: str, backend: str, *disabled: str) -> Paged:
    settings = {**worker_settings(backend), "max_total_tokens": 64, "cuda_graph_max_bs": 2}
    return Paged(path, 2, 1, **settings, disable_fused_kernels=disabled)


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", MODELS)
def test_fused_logits_equal_eager_ones(name: str, tmp_path: Path) -> None:
    architecture, settings, rotates = MODELS[name]
    path = write_config(tmp_path, architectures=[architecture], **{**SHAPE, **settings})
    eager, fused = paged(path, EAGER, *LAYER_KERNELS), paged(path, "triton")
    model: Any = fused.worker.model
    operations, rotated = model.place.operations, []

    def rotate_append(qkv: Tensor, *more: Any) -> Tensor:
        rotated.append(len(qkv))
        return operations.rotate_append(qkv, *more)

    counted = replace(operations, rotate_append=rotate_append)
    model.place = replace(model.place, operations=counted)
    want = logits(eager)
    assert difference(logits(fused), want) < TOLERANCE
    assert bool(rotated) == rotates


@pytest.mark.parametrize("act", ["silu", "clamped_swiglu"])
@pytest.mark.parametrize(("head_dim", "partial"), [(16, 1.0), (32, 0.5), (80, 1.0)])
def test_every_kernel_passes_its_trial(head_dim: int, partial: float, act: str) -> None:
    sizes = TrialSizes(64, 96, 4, 2, head_dim, partial, expert=32, act=act)
    trial = KernelTrial(sizes, DEVICE, DTYPE)
    assert trial.trials.keys() == {*LAYER_KERNELS, "moe"}
    assert list(trial.failures(trial.trials)) == []


@pytest.mark.parametrize("name", LAYER_KERNELS)
def test_one_kernel_can_be_disabled(name: str, tmp_path: Path) -> None:
    path = write_config(tmp_path, architectures=["Qwen3ForCausalLM"], **SHAPE)
    want = logits(paged(path, EAGER, *LAYER_KERNELS))
    assert difference(logits(paged(path, "triton", name)), want) < TOLERANCE


def test_native_attention_writes_its_pools_itself(tmp_path: Path) -> None:
    path = write_config(tmp_path, architectures=["Qwen3ForCausalLM"], **SHAPE)
    want = logits(paged(path, "native", *LAYER_KERNELS))
    assert difference(logits(paged(path, "native")), want) < TOLERANCE


@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
def test_replayed_passes_are_fused_too(backend: str, tmp_path: Path) -> None:
    """Graphs on a GPU; on a CPU the work itself on their buffers, and FlashInfer's stand-in."""
    gpu_device.needs(backend)
    path = write_config(tmp_path, architectures=["Qwen3ForCausalLM"], **{**SHAPE, "head_dim": 64})
    want = logits(paged(path, "native", *LAYER_KERNELS))
    fused = paged(path, backend if ON_GPU else "native")
    runner, model = fused.worker.runner, fused.worker.model
    if not ON_GPU:
        pool = runner.pool
        attention: Any = build(backend, pool.keys, pool.values, 2, model.spec)
        runner.forward = Graphs(model, attention, Again(), pool, 2, 64)
    assert isinstance(runner.forward, Graphs)
    assert difference(logits(fused), want) < TOLERANCE
