"""The warm-up on a GPU: Triton compiles nothing after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import gpu_device
from helpers.gpu_device import ON_GPU, worker_settings
from helpers.random_passes import PassSizes, RandomPasses
from helpers.tiny_model import write_config
from sglang.srt.config import Config
from sglang.srt.worker.model_worker import ModelWorker

gpu_device.needs_device()
if not ON_GPU:
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)
SIZES = PassSizes(rows=48, tokens=512, length=4096)


@pytest.mark.parametrize("settings", [{}, {"disable_cuda_graph": True}])
@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
def test_random_passes_compile_nothing(
    backend: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    gpu_device.needs(backend)
    path = write_config(
        tmp_path, max_position_embeddings=SIZES.length, num_attention_heads=8,
        num_key_value_heads=2, head_dim=64,
    )  # fmt: skip
    flags = {"max_running_requests": SIZES.rows, "chunked_prefill_size": SIZES.tokens}
    config = Config.of(
        model_path=path, **worker_settings(backend), **flags, **settings, cuda_graph_max_bs=24
    )
    worker = ModelWorker(config)
    assert worker.compilations is not None
    ready = worker.compilations.count
    passes = RandomPasses(1, SIZES, worker.runner)
    for number in range(200):
        result = worker.launch(passes.batch(number))()
        assert result.compiled == 0, worker.compilations.last
    assert worker.compilations.count == ready > 0
