"""The device that test/gpu runs on: a GPU in bfloat16; or, to try the tests themselves, a CPU.

    SGLANG_TEST_DEVICE=cpu TRITON_INTERPRET=1 pytest test/gpu

runs every test body in float32, Triton's kernels in its interpreter, and FlashInfer's stand-in;
of cases that run the same kernels one, or with TEST_LONG=1 all.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest
import torch
from helpers.seeds import LONG

from benchmark.gpu.interpreter import prepare

NAME = os.environ.get("SGLANG_TEST_DEVICE", "cuda")
ON_GPU = NAME == "cuda"
# Whether every case runs. The interpreter takes milliseconds for an operation.
EVERY_CASE = ON_GPU or LONG
DEVICE = torch.device(NAME)
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
# Attention in bfloat16 against float64: inputs and outputs have 8 bits.
TOLERANCE: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2} if ON_GPU else {"rtol": 1e-4, "atol": 2e-5}
prepare()
BACKENDS = ("native", "triton", "flashinfer")


def needs_device() -> None:
    """Skip the module, with the reason, where its device is missing."""
    if ON_GPU and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device", allow_module_level=True)


def needs(backend: str) -> None:
    """Skip a test or module, with the reason, where a backend cannot run; on a CPU FlashInfer's
    stand-in takes its place."""
    if backend == "flashinfer" and not ON_GPU:
        from helpers import fake_flashinfer
        from sglang.srt.attention import flashinfer_attention

        sys.modules["flashinfer"] = fake_flashinfer
        flashinfer_attention.SCHEDULE = 1 << 10
        return
    packages = {"native": (), "triton": ("triton", "sgl_kernel"), "flashinfer": ("flashinfer",)}
    for package in packages[backend]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
    if backend == "triton" and not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1":
        reason = "Triton's kernels run on a CPU with TRITON_INTERPRET=1 alone"
        pytest.skip(reason, allow_module_level=True)


def worker_settings(backend: str) -> dict[str, Any]:
    return {
        "device": NAME, "dtype": "bfloat16" if ON_GPU else "float32", "load_format": "dummy",
        "attention_backend": backend, "max_total_tokens": 4096,
        **({} if ON_GPU else {"cpu_kernels": "torch"}),
    }  # fmt: skip
