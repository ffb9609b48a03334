"""The warm-up with FlashInfer's stand-in: every kind of pass that would compile a module."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import fake_flashinfer
from helpers.tiny_model import write_config
from sglang.srt.attention import flashinfer_attention
from sglang.srt.attention.backend_choice import build
from sglang.srt.config import Config
from sglang.srt.worker.forward import Eager
from sglang.srt.worker.graphs import Again, Graphs
from sglang.srt.worker.model_worker import ModelWorker
from sglang.srt.worker.warm_up import WarmUpLimits, warm_up_both

ROWS, LENGTH = 6, 200


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("graphs", [False, True])
def test_warm_up_takes_all_ways(
    page_size: int, graphs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    for name in ("WORKSPACE", "SCHEDULE"):
        monkeypatch.setattr(flashinfer_attention, name, 1 << 10, raising=False)
    path = write_config(tmp_path, head_dim=16, max_position_embeddings=LENGTH)
    config = Config.of(
        model_path=path, load_format="dummy", device="cpu", cpu_kernels="torch",
        page_size=page_size, max_total_tokens=320, max_running_requests=ROWS,
        chunked_prefill_size=32,
    )  # fmt: skip
    worker = ModelWorker(config)
    runner, pool = worker.runner, worker.runner.pool
    with torch.inference_mode():
        for pages in pool.keys + pool.values:
            pages.zero_()
    attention: Any = build("flashinfer", pool.keys, pool.values, page_size, worker.model.spec)
    runner.forward = Eager(worker.model, attention)
    if graphs:
        runner.forward = Graphs(worker.model, attention, Again(), pool, 2 * ROWS, LENGTH)
    fake_flashinfer.calls.clear()
    warm_up_both(runner, WarmUpLimits.of(config, worker.model.spec))
    # With graphs no pass of decode rows runs by itself but those with adapters.
    ways = {"decode", "prefill", "level", "merge"} | ({"captured"} if graphs else set())
    assert set(fake_flashinfer.calls) == ways
