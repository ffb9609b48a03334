"""Profiles: device time by kernel, the 25 longest of each kind of pass.

    replay     decode passes as graphs, or eagerly where there are none
    eager      the same passes, every kernel launched by itself
    prefill    one prompt
    sampled    decode passes with temperature, top-k and top-p

``busy`` is the share of the wall time in which kernels ran: the rest is launches and gaps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sglang.srt.core.batch import Batch
from sglang.srt.worker.model_worker import ModelWorker
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from benchmark.gpu.bench import Bench
from benchmark.gpu.records import Value
from benchmark.gpu.shapes import SHAPES, TINY, ModelShape
from benchmark.gpu.workload import (
    SAMPLED,
    decode_batches,
    each,
    load,
    modes,
    prompt_batch,
    sizes_of,
)

TOP = 25


def profiles(bench: Bench) -> None:
    """Models from the largest on."""
    each(bench, (TINY,) if bench.tiny else (SHAPES[1], SHAPES[0]), 40, _model)


def _model(bench: Bench, shape: ModelShape) -> None:
    worker = load(bench, shape)
    ways, sizes = modes(bench, worker), sizes_of(bench)
    passes, rows = (2, 3) if bench.tiny else (5, 32)
    lengths = [sizes.context] * rows
    greedy = decode_batches(worker, lengths, passes)
    cases = {
        "replay": ("graph", greedy),
        "eager": ("eager", greedy),
        "prefill": ("eager", [prompt_batch(worker, [], sizes.prompt)]),
        "sampled": ("graph", decode_batches(worker, lengths, passes, SAMPLED)),
    }
    for name, (way, batches) in cases.items():
        if not bench.enough(6, f"{shape.name} {name} and what follows"):
            return
        ways.get(way, ways["eager"])()
        _profiled(bench, worker, f"{shape.name} {name}", batches)


def _profiled(bench: Bench, worker: ModelWorker, name: str, batches: Sequence[Batch]) -> None:
    for batch in batches:
        worker.run(batch)
    bench.sync()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.on_gpu else [])]
    with profile(activities=activities) as profiler:
        began = time.perf_counter()
        for batch in batches:
            worker.run(batch)
        bench.sync()
        wall = time.perf_counter() - began
    found = sorted(kernels(profiler.key_averages(), bench.on_gpu), reverse=True)
    total = sum(microseconds for microseconds, *_ in found)
    passes = len(batches)
    about: dict[str, Value] = {
        "pass": name, "wall ms": wall / passes * 1e3, "kernels ms": total / passes / 1e3,
        "busy": f"{total / 1e6 / wall:.0%}" if wall else None,
        "launched a pass": sum(count for _, count, _ in found) / passes,
    }  # fmt: skip
    bench.row("profile", **about)
    for microseconds, count, kernel in found[:TOP]:
        line: dict[str, Value] = {
            "us a pass": microseconds / passes, "share": f"{microseconds / (total or 1):.1%}",
            "calls a pass": count / passes, "us a call": microseconds / max(count, 1),
            "kernel": short(kernel),
        }  # fmt: skip
        bench.row(f"kernels of {name}", **line)


def kernels(averages: Any, on_gpu: bool) -> list[tuple[float, int, str]]:
    """Microseconds, calls and name of everything that took time on the device, or without a GPU of
    every operation on the host."""
    found = []
    for event in averages:
        if on_gpu and event.device_type != DeviceType.CUDA:
            continue
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if spent > 0:
            found.append((float(spent), int(event.count), str(event.key)))
    return found


def short(kernel: str) -> str:
    """A kernel's name, at most 100 characters."""
    return kernel.removeprefix("void ")[:100]
