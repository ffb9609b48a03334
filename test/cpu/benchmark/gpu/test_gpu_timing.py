"""Timing, sizes and counts of the GPU benchmark, as far as a CPU shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmark.gpu import timing
from benchmark.gpu.bench import Bench, share
from benchmark.gpu.compiles import Compiles
from benchmark.gpu.passes import launches_without_waiting
from benchmark.gpu.profiles import kernels, short
from benchmark.gpu.records import Log, read, shown
from benchmark.gpu.shapes import MOE_PART, SHAPES
from benchmark.gpu.timing import CACHE, MOST, copies, timed

# Parameters of the published models, in billions; the mixture's with all of its experts.
PUBLISHED = {"1 B": 1.236, "8 B": 8.030, "14 B": 14.768, "32 B": 32.762, "MoE": 30.532}


def make(folder: Path, device: str = "cpu", tiny: bool = True) -> Bench:
    log = Log(folder, "stage")
    return Bench(torch.device(device), torch.float32, tiny, log, time.monotonic() + 60)


def test_copies_exceed_the_cache_without_the_one_in_use() -> None:
    for size in (1, 1000, 5 << 20, CACHE, 1 << 30):
        count = copies(size)
        assert 1 <= count <= MOST
        assert count == MOST or (count - 1) * size >= CACHE
    assert copies(4 << 30, memory=8 << 30) == 2
    assert copies(16 << 30) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_shapes_have_the_published_parameters(shape: Any) -> None:
    embeddings = shape.head * (1 if shape.tied else 2)
    # So many tokens read every expert.
    total = (shape.linear(100_000) + embeddings) / 1e9
    assert total == pytest.approx(PUBLISHED[shape.name], rel=2e-3)
    assert shape.linear() <= shape.linear(100_000)


def test_products_are_the_parameters_of_a_layer() -> None:
    for shape in SHAPES[:4]:
        parts = [n * k for name, (n, k) in shape.projections.items() if name != "head"]
        assert sum(parts) * shape.layers == shape.linear()
    assert MOE_PART.linear(1) * 8 == SHAPES[-1].linear(1)


def test_without_a_gpu_the_host_s_clock_is_used(tmp_path: Path) -> None:
    calls = []
    found = timed(make(tmp_path), [lambda: calls.append(1)])
    assert found.how == "clock"
    assert len(calls) >= 2


class Event:
    """A CUDA event on a clock that counts the calls of ``work``."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, last: Event) -> float:
        return last.at - self.at


def fake_cuda(monkeypatch: pytest.MonkeyPatch, refuses: bool) -> dict[str, int]:
    """Streams and graphs by stand-ins: a graph's replay does its captured calls again."""
    counts = {"captures": 0, "replays": 0}

    class Graph:
        def replay(self) -> None:
            counts["replays"] += 1
            Event.now += 40.0  # milliseconds of twenty calls

    @contextmanager
    def graph(made: Graph, stream: Any) -> Iterator[None]:
        counts["captures"] += 1
        if refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        yield

    @contextmanager
    def nothing(stream: Any) -> Iterator[None]:
        yield

    cuda = SimpleNamespace(
        CUDAGraph=Graph, graph=graph, Event=Event, stream=nothing,
        Stream=lambda device: SimpleNamespace(wait_stream=lambda other: None),
        current_stream=lambda device: None, synchronize=lambda device: None,
        set_stream=lambda stream: counts.update(restored=1),
    )  # fmt: skip
    monkeypatch.setattr(torch, "cuda", cuda)
    return counts


def test_a_captured_graph_of_twenty_calls_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = fake_cuda(monkeypatch, refuses=False)
    bench = make(tmp_path, "cuda", tiny=False)
    seen: list[int] = []
    found = timed(bench, [lambda: seen.append(0), lambda: seen.append(1)])
    assert (found.how, counts["captures"]) == ("graph", 1)
    assert found.seconds == pytest.approx(0.040 / timing.CALLS)
    assert counts["replays"] >= 4
    assert seen[-timing.CALLS :] == [0, 1] * (timing.CALLS // 2), "copies take turns"


def test_what_cannot_be_captured_is_timed_by_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = fake_cuda(monkeypatch, refuses=True)

    def work() -> None:
        Event.now += 3.0

    found = timed(make(tmp_path, "cuda", tiny=False), [work])
    assert (found.how, counts["restored"]) == ("events", 1)
    assert found.seconds == pytest.approx(0.003)
    (remark,) = [r["text"] for r in read(tmp_path, "stage") if r["kind"] == "remark"]
    assert "stream is capturing" in remark


def test_bounds_are_unknown_without_ceilings(tmp_path: Path) -> None:
    bench = make(tmp_path)
    assert bench.bound(1e9, 1e12) == 0.0
    bench.copy, bench.product = 2e12, 1e15
    assert bench.bound(1e12, 1e12) == 0.5
    assert bench.bound(1e9, 2e15) == 2.0
    assert (share(0.5, 2.0), share(0.0, 2.0)) == ("25%", None)
    assert [shown(x) for x in (None, 1234.5, 0.12345, 7, "x")] == ["-", "1234", "0.123", "7", "x"]


def test_a_stage_says_what_it_leaves_out(tmp_path: Path) -> None:
    bench = make(tmp_path, tiny=False)
    assert bench.enough(1.0, "one")
    assert not bench.enough(1000.0, "two")
    texts = [r["text"] for r in read(tmp_path, "stage")]
    assert texts == ["left out for time: two"]


def test_a_case_is_begun_once_over_all_attempts(tmp_path: Path) -> None:
    first = make(tmp_path)
    assert [first.first(case) for case in ("a", "b")] == [True, True]
    again = make(tmp_path)
    again.begun |= {r["case"] for r in read(tmp_path, "stage") if r["kind"] == "case"}
    assert [again.first(case) for case in ("a", "b", "c", "c")] == [False, False, True, False]


def test_a_broken_device_ends_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(tmp_path)
    bench.failed("case", ValueError("no such shape"))

    def sync() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(bench, "sync", sync)
    with pytest.raises(RuntimeError, match="illegal"):
        bench.failed("case", ValueError("no such shape"))


def test_variants_are_counted_and_the_listener_is_put_back() -> None:
    knobs = pytest.importorskip("triton").knobs
    before = knobs.compilation.listener
    with Compiles() as compiles:
        heard = knobs.compilation.listener
        for name, hit in (("decode", False), ("decode", True), ("norm", True)):
            heard(
                src=None, metadata={"name": name}, metadata_group={},
                times=SimpleNamespace(total=2_000_000), cache_hit=hit,
            )  # fmt: skip
    assert knobs.compilation.listener is before
    assert (compiles.fresh, compiles.read) == ({"decode": 1}, {"decode": 1, "norm": 1})
    assert (compiles.seconds, compiles.text) == (2.0, "decode 2, norm 1")


def test_only_what_ran_on_the_device_is_a_kernel() -> None:
    kinds = torch.autograd.DeviceType  # type: ignore[attr-defined]

    def event(kind: Any, key: str, spent: float) -> Any:
        return SimpleNamespace(
            device_type=kind, key=key, count=2, self_device_time_total=spent,
            self_cpu_time_total=spent + 1,
        )  # fmt: skip

    events = [event(kinds.CUDA, "gemm", 5.0), event(kinds.CPU, "aten::mm", 5.0),
              event(kinds.CUDA, "never", 0.0)]  # fmt: skip
    assert kernels(events, on_gpu=True) == [(5.0, 2, "gemm")]
    assert len(kernels(events, on_gpu=False)) == 3
    assert short("void cutlass::" + "x" * 200) == "cutlass::" + "x" * 91


@pytest.mark.parametrize("waits", [False, True])
def test_a_launch_that_waits_is_named_and_the_check_ends(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, finished = ["default"], []
    cuda = SimpleNamespace(set_sync_debug_mode=modes.append, synchronize=lambda device: None)
    monkeypatch.setattr(torch, "cuda", cuda)

    def launch(batch: int) -> Any:
        if waits and batch == 2 and modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return lambda: finished.append(batch)

    worker: Any = SimpleNamespace(launch=launch, run=lambda batch: launch(batch)())
    batches: Any = [1, 2]
    outcome = launches_without_waiting(make(tmp_path, "cuda"), worker, batches)
    assert outcome == ("waits: called a synchronizing CUDA operation" if waits else "nothing waits")
    assert modes == ["default", "error", "default"]
    assert finished == ([1, 2] if waits else [1, 2, 1, 2]), "the first time is not judged"
