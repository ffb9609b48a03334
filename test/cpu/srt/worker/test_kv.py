"""The size of the KV pool, and what is reserved beside it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers.paged import Paged
from helpers.tiny_model import write_config
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.config import Config, MemoryConfig
from sglang.srt.core.batch import Batch, Row
from sglang.srt.core.ints import ints
from sglang.srt.engine.executor import Threaded
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.numeric.host_arrays import BFLOAT16
from sglang.srt.worker import kv, model_loading, model_worker, scratch
from sglang.srt.worker.kv import MemoryUse, measured, pool_pages
from sglang.srt.worker.model_loading import plan_of
from sglang.srt.worker.model_worker import ModelWorker
from sglang.srt.worker.scratch import scratch_bytes

CPU, GPU = torch.device("cpu"), torch.device("cuda:1")


def pages(use: MemoryUse, device: torch.device = CPU, **settings) -> int:
    return pool_pages(MemoryConfig(**settings), 10, use, 100, device)


def test_the_pool_is_sized_by_tokens_or_by_memory() -> None:
    large = MemoryUse(1 << 40, 1000)
    assert pages(large, max_total_tokens=50, page_size=4) == 12
    assert pages(large, page_size=4) == 32 * 100 // 4
    assert pages(MemoryUse(10_000, 1000), mem_fraction_static=0.5) == 400
    assert pages(MemoryUse(10_000, 1000)) == 200
    with pytest.raises(MemoryError, match="leave no room"):
        pages(MemoryUse(3_000, 1000))
    with pytest.raises(MemoryError, match="less than one page"):
        pages(large, max_total_tokens=3, page_size=4)


def test_the_pool_leaves_room_for_passes_and_graphs() -> None:
    use = MemoryUse(100_000, 40_000, adapters=5_000, scratch=20_000)
    assert pages(use, GPU) == (80_000 - 45_000) // 10, "the scratch is more than the 15 % left"
    assert pages(replace(use, scratch=1_000), GPU) == (85_000 - 45_000) // 10
    assert pages(use, GPU, max_total_tokens=3_500) == 3_500
    with pytest.raises(MemoryError, match=r"max_total_tokens is 3501, .* free. Lower it."):
        pages(use, GPU, max_total_tokens=3_501)
    with pytest.raises(MemoryError, match="lower cuda_graph_max_bs or chunked_prefill_size"):
        pages(replace(use, scratch=60_000), GPU)
    with pytest.raises(MemoryError, match=r"the weights need 0\.00 GB and cuda:1 has 0\.00 GB"):
        pages(replace(use, weights=100_001), GPU)


@given(
    available=st.integers(1, 10**9), weights=st.integers(0, 10**9), scratch=st.integers(0, 10**9),
    share=st.floats(0.01, 0.99), page=st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_the_pool_fits_beside_everything_or_is_refused(
    available: int, weights: int, scratch: int, share: float, page: int
) -> None:
    use = MemoryUse(available, weights, scratch=scratch)
    try:
        count = pages(use, GPU, mem_fraction_static=share, page_size=page)
    except MemoryError:
        return
    assert count >= 1
    assert weights + scratch + count * page * 10 <= available


def test_weights_are_measured_once_the_cache_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [100, 250]  # while blocks are cached that nothing uses, and afterwards

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.pop(0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 1000))
    use = measured(MemoryUse(1000, weights=5, adapters=7, scratch=9), GPU)
    assert use == MemoryUse(1000, weights=750, adapters=7, scratch=9)
    assert measured(use, CPU) == use


def spec_of(tmp_path) -> ModelSpec:
    path = write_config(tmp_path)
    return plan_of(Config.of(model_path=path, device="cpu", load_format="dummy")).spec


def test_scratch_grows_with_rows_chunks_and_the_workspace(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, half = spec_of(tmp_path), BFLOAT16
    chosen = SimpleNamespace(name="triton")
    monkeypatch.setattr(scratch, "choose", lambda *_: chosen)
    monkeypatch.setattr(scratch, "workspace", lambda name, *_: 1000 * (name == "flashinfer"))

    def size(**settings: object) -> int:
        config = Config.of(**settings)
        return scratch_bytes(config, spec, half, half, GPU)

    least = size(disable_cuda_graph=True)
    assert size(cuda_graph_max_bs=8) > least
    assert size(cuda_graph_max_bs=256) > size(cuda_graph_max_bs=8)
    assert size(disable_cuda_graph=True, chunked_prefill_size=8192) > least
    chosen.name = "flashinfer"
    assert size(disable_cuda_graph=True) == least + 1000
    assert scratch_bytes(Config.of(), spec, half, half, CPU) == 0


def test_a_worker_makes_its_gpu_current_in_every_thread(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU's worker says that it is on the second GPU; what it then makes current is noted."""
    import threading

    worker = Paged(write_config(tmp_path), 1, 0, load_format="dummy").worker
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(
        torch.cuda, "set_device",
        lambda device: seen.append((threading.current_thread().name, str(device))),
    )  # fmt: skip
    executor = Threaded(worker)
    for device in (GPU, CPU):
        worker.device = device  # type: ignore[assignment]  # a stand-in
        executor.submit(Batch(1, [Row(0, 0, ints([1, 2]), ints([0, 1]))]))
        executor.result()
    executor.close()
    assert seen == [("srt-worker", "cuda:1")]


def test_a_worker_loads_with_its_gpu_current_and_measures(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of a start: current device, estimate, weights, measurement, pool."""
    happened: list[str] = []
    real = model_loading.load_model

    def load(*arguments: object) -> object:
        happened.append("weights")
        return real(*arguments)  # type: ignore[arg-type]

    def pool(memory: MemoryConfig, token: int, use: MemoryUse, *_: object) -> int:
        happened.append(f"pool beside {use.weights}")
        return 64

    monkeypatch.setattr(model_worker, "load_model", load)
    monkeypatch.setattr(model_worker, "pool_pages", pool)
    monkeypatch.setattr(model_worker, "measured", lambda use, device: replace(use, weights=77))
    monkeypatch.setattr(model_worker, "make_current", lambda device: happened.append("current"))
    path = write_config(tmp_path)
    config = Config.of(model_path=path, load_format="dummy", device="cpu", cpu_kernels="torch")
    ModelWorker(config)
    estimate = happened.pop(1)
    assert estimate.startswith("pool beside ")
    assert happened == ["current", "weights", "pool beside 77"]


def test_weights_that_do_not_fit_are_a_clear_error(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    monkeypatch.setattr(model_worker, "load_model", load)
    config = Config.of(model_path=write_config(tmp_path), load_format="dummy", device="cpu")
    with pytest.raises(MemoryError, match=r"the weights do not fit cpu, .* use a smaller model"):
        ModelWorker(config)


def test_a_gpu_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(model_loading, "gpu_driver", lambda: True)
    monkeypatch.setattr(
        model_loading.torch, "empty",  # type: ignore[attr-defined]  # the stand-in of torch
        lambda size, device: SimpleNamespace(device=GPU) if "cuda" in device else empty(size),
    )  # fmt: skip
    assert model_loading.device_of("auto") == model_loading.device_of("cuda") == str(GPU)
    asked: list[str] = []
    monkeypatch.setattr(
        model_loading.torch,  # type: ignore[attr-defined]
        "empty",
        lambda size, device: asked.append(device) or SimpleNamespace(device=GPU),
    )
    for name in ("auto", "cuda", "cuda:3"):
        model_loading.device_of(name, 2)
    assert asked == ["cuda:2", "cuda:2", "cuda:3"]
    monkeypatch.undo()
    assert kv.available_memory(CPU) > 0
