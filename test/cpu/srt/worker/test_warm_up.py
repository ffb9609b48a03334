"""The warm-up: no pass after it compiles a kernel. Triton's own keys decide, for an H100."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs triton, which has no build for this system", allow_module_level=True)

from helpers.random_passes import PassSizes, RandomPasses
from helpers.tiny_model import write_config
from helpers.triton_keys import sm90
from sgl_kernel.triton.compilations import compilations
from sglang.srt.attention.backend_choice import build
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, Sample
from sglang.srt.core.ints import ints
from sglang.srt.engine.engine_stats import EngineStats
from sglang.srt.layers import torch_experts
from sglang.srt.logits import gpu_draw
from sglang.srt.logits.drawing import Drawing
from sglang.srt.worker import torch_passes
from sglang.srt.worker.forward import Eager
from sglang.srt.worker.graphs import Again, Graphs
from sglang.srt.worker.model_worker import ModelWorker
from sglang.srt.worker.warm_up import WarmUpLimits, batches, samples, warm_up, warm_up_both
from torch import Tensor
from triton import knobs

ROWS, TOKENS, LENGTH, PAGES = 48, 512, 4096, 300
LIMITS = {"max_running_requests": ROWS, "chunked_prefill_size": TOKENS, "cuda_graph_max_bs": 24}
MODELS: dict[str, dict[str, Any]] = {
    "grouped": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
    "one key head": {"num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 64},
    "ungrouped": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 80},
    "windows": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 100,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 32, "hidden_activation": "gelu_pytorch_tanh",
    },
    "experts": {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 32,
        "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"], "attention_bias": True,
        "hidden_size": 64, "intermediate_size": 64,
    },
}  # fmt: skip


def draw(logits: Tensor, samples: Sequence[Sample]) -> Drawing:
    """The GPU's sampling, whose tokens nothing has computed."""
    drawing = gpu_draw.draw(logits, samples)
    drawing.tokens.zero_()
    return drawing


def config_of(path: str, page_size: int) -> Config:
    return Config.of(
        model_path=path, page_size=page_size, load_format="dummy", dtype="bfloat16", device="cpu",
        cpu_kernels="torch", max_total_tokens=PAGES * page_size, **LIMITS,
    )  # fmt: skip


def worker_of(path: str, page_size: int, graphs: bool) -> ModelWorker:
    """A worker on the CPU that launches what it would launch on a GPU."""
    worker = ModelWorker(config_of(path, page_size))
    runner, model, pool = worker.runner, worker.model, worker.runner.pool
    attention: Any = build("triton", pool.keys, pool.values, page_size, model.spec)
    attention.processors = 132
    runner.forward = Eager(model, attention)
    if graphs:
        runner.forward = Graphs(
            model, attention, Again(), pool, LIMITS["cuda_graph_max_bs"],
            runner.reader.context_length,
        )  # fmt: skip
    runner.forward.draw = draw  # type: ignore[method-assign]
    worker.compilations = compilations()
    return worker


def hold(path: str, page_size: int, graphs: bool, passes: int) -> dict[str, int]:
    """Warm up, then run random passes, none of which may compile anything. Return the number of
    variants of each kernel."""
    with sm90() as device:
        worker = worker_of(path, page_size, graphs)
        forward = worker.runner.forward
        limits = WarmUpLimits.of(config_of(path, page_size), worker.model.spec)
        warm_up_both(worker.runner, limits)
        assert worker.runner.forward is forward
        found, ready, counted = device.names(), len(device.compiled), compilations().count
        random_passes = RandomPasses(page_size, PassSizes(ROWS, TOKENS, LENGTH), worker.runner)
        for number in range(passes):
            result = worker.launch(random_passes.batch(number))()
            late = [(name, constants) for name, _, constants, _ in device.compiled[ready:]]
            assert result.compiled == 0, late
        assert compilations().count == counted
    return found


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_no_pass_after_the_warm_up_compiles(
    model: str, graphs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped = torch_experts.grouped
    monkeypatch.setattr(torch_experts, "each", lambda *x: grouped(*x[:4]))  # as on a GPU
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # layers have fused kernels, as on a GPU
    page_size = 16 if model == "ungrouped" else 1
    path = write_config(tmp_path, max_position_embeddings=LENGTH, **MODELS[model])
    variants = hold(path, page_size, graphs, 125)
    assert {"attend", "merge", "choose", "greedy", "penalise"} <= variants.keys()
    assert (variants["rotate_append"], variants["norm"]) == (1, 2), "a norm with a sum, and without"
    assert (
        (variants.get("product", 0) == 6) == (variants.get("gate", 0) == 0) == (model == "experts")
    )
    assert sum(variants.values()) < 40, "each costs a start a second or more"


def test_compilations_of_a_pass_are_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The outputs, the engine's statistics and the log have them."""
    path, stats = write_config(tmp_path, head_dim=16), EngineStats()
    with sm90() as device:
        worker = worker_of(path, 1, graphs=False)
        row = Row(0, 0, ints([5]), ints([0]), sample=samples(160)["greedy"])
        for number in (1, 2):
            result = worker.launch(batch := Batch(number, [row]))()
            stats.computed(batch, result)
            assert result.compiled == (len(device.compiled) if number == 1 else 0)
    assert stats.compiled_kernels == len(device.compiled) == 4
    (record,) = [r for r in caplog.records if "compiled" in r.message]
    assert record.levelname == "WARNING"
    assert "a pass of 1 rows and 1 tokens compiled 4 kernels (greedy)" in record.message


def test_warm_up_leaves_no_tables(tmp_path: Path) -> None:
    with sm90():
        worker = worker_of(write_config(tmp_path, head_dim=16), 4, graphs=False)
        assert warm_up(worker.runner, WarmUpLimits(ROWS, TOKENS, generates=True)) > 40
        assert not len(worker.runner.reader.tables)


@pytest.mark.parametrize(
    ("limits", "length"),
    [
        (WarmUpLimits(1, 1, True), 1), (WarmUpLimits(1, -1, True), 2),
        (WarmUpLimits(2, 7, False), 300), (WarmUpLimits(300, 100_000, True), 3),
        (WarmUpLimits(3, 0, True), 129),
    ],
)  # fmt: skip
def test_passes_stay_within_the_limits(limits: WarmUpLimits, length: int, tmp_path: Path) -> None:
    """Any limits give passes that a worker takes."""
    path = write_config(tmp_path, head_dim=16, max_position_embeddings=length)
    runner = ModelWorker(
        Config.of(model_path=path, load_format="dummy", device="cpu", max_total_tokens=64)
    ).runner
    for label, batch in batches(runner, limits):
        assert len(batch.rows) <= limits.rows, label
        assert all(len(row.tokens) + row.start <= length for row in batch.rows), label
        assert all((row.sample is None) or limits.generates for row in batch.rows), label
        assert len({row.context for row in batch.rows}) == len(batch.rows)
        for row in runner.launch(batch)().rows:
            assert not row.error, label


@pytest.mark.parametrize("skip", [False, True])
def test_a_worker_warms_up_what_it_uses(
    skip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker computes the warm-up, or skips it with ``--skip-server-warmup``."""
    chosen = torch_passes.by_torch

    def as_on_a_gpu(*arguments: Any) -> Any:
        found, prepare = chosen(*arguments), arguments[-1]
        prepare(found.forward)
        return found

    monkeypatch.setattr(torch_passes, "by_torch", as_on_a_gpu)
    path = write_config(tmp_path, head_dim=16, max_position_embeddings=64)
    with caplog.at_level("INFO"):
        worker = ModelWorker(
            Config.of(
                model_path=path, load_format="dummy", device="cpu", max_running_requests=4,
                chunked_prefill_size=32, max_total_tokens=128, skip_server_warmup=skip,
                cpu_kernels="torch",
            )
        )  # fmt: skip
    assert ("warmed up by" in caplog.text) != skip
    assert not len(worker.runner.reader.tables)


def test_a_device_without_memory_is_an_error_with_a_fix(tmp_path: Path) -> None:
    path = write_config(tmp_path, head_dim=16)
    worker = ModelWorker(Config.of(model_path=path, load_format="dummy", device="cpu"))
    launch = worker.runner.launch

    def full(batch: Batch) -> Any:
        if batch.num_tokens > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launch(batch)

    worker.runner.launch = full  # type: ignore[method-assign, assignment]
    with pytest.raises(MemoryError, match="no memory left for a pass of a prompt of 128 tokens"):
        warm_up(worker.runner, WarmUpLimits(4, 512, generates=True))


def test_hooks_that_were_there_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    runtime = knobs.runtime
    for name in ("jit_cache_hook", "jit_post_compile_hook"):
        monkeypatch.setattr(runtime, name, lambda name=name, **facts: seen.append(name))
    compilations.cache_clear()
    try:
        with sm90():
            found = compilations()
            gpu_draw.draw(torch.zeros(2, 160), [samples(160)["greedy"]] * 2)
        assert (found.count, found.last) == (2, "greedy")
        assert found.seconds > 0.0
    finally:
        compilations.cache_clear()
    assert seen == ["jit_cache_hook", "jit_post_compile_hook"] * 2
