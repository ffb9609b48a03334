"""Passes: whole models with random weights: times, launches, memory, waits and compilations.

eager      every kernel launched by itself
graph      decode passes replayed as CUDA graphs
overlap    graphs where there are any, each pass launched while the one before is computed
launch     host time of one ``ModelWorker.launch``, the device still busy
bound      bytes (weights, keys and values) over the copy rate, or operations over the rate of
           products, whichever is longer
goal       share of the bound that a pass is to reach
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.core.batch import Batch
from sglang.srt.worker.model_worker import ModelWorker

from benchmark.gpu.bench import Bench, share
from benchmark.gpu.compiles import Compiles
from benchmark.gpu.shapes import MOE_PART, SHAPES, TINY, TINY_MOE, ModelShape
from benchmark.gpu.workload import (
    GREEDY,
    SAMPLED,
    Sizes,
    decode_batches,
    each,
    in_turn,
    load,
    modes,
    overlapped,
    prompt_batch,
    sizes_of,
)


def passes(bench: Bench) -> None:
    each(bench, (TINY, TINY_MOE) if bench.tiny else (*SHAPES[:2], MOE_PART), 45, _model)


def _model(bench: Bench, shape: ModelShape) -> None:
    began = time.perf_counter()
    with Compiles() as starting:
        worker = load(bench, shape)
    _memory(bench, shape, time.perf_counter() - began, starting)
    ways = modes(bench, worker)
    with Compiles() as later:
        for step in (_decodes, _others, _waits):
            step(bench, shape, worker, ways)
    bench.row(
        "compiled after start", model=shape.name, compiled=sum(later.fresh.values()),
        read=sum(later.read.values()), seconds=later.seconds, kernels=later.text,
    )  # fmt: skip


def _memory(bench: Bench, shape: ModelShape, seconds: float, compiles: Compiles) -> None:
    row: dict[str, Any] = {"model": shape.name, "start s": seconds}
    if bench.on_gpu:
        row |= {
            "allocated GB": torch.cuda.memory_allocated(bench.device) / 1e9,
            "peak GB": torch.cuda.max_memory_allocated(bench.device) / 1e9,
            "graphs GB": graph_bytes() / 1e9,
        }  # fmt: skip
    compiled = sum(compiles.fresh.values())
    bench.row("start", **row, compiled=compiled, **{"compiling s": compiles.seconds})


def graph_bytes() -> int:
    """Device memory of the pools that captured graphs keep to themselves."""
    return sum(
        int(segment["total_size"])
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    )


Ways = dict[str, Callable[[], None]]


def _decodes(bench: Bench, shape: ModelShape, worker: ModelWorker, ways: Ways) -> None:
    sizes = sizes_of(bench)
    cases: list[tuple[str, list[int]]] = [
        (f"decode {rows}", [sizes.context] * rows) for rows in sizes.batches
    ]
    cases.append((f"decode {sizes.long[0]} x {sizes.long[1]}", [sizes.long[1]] * sizes.long[0]))
    short = [sizes.context] * (2 if bench.tiny else 39)
    cases.append((f"decode 1 x {sizes.one} + {len(short)}", [sizes.one, *short]))
    for name, lengths in cases:
        if not bench.enough(8, f"{shape.name} {name} and what follows"):
            return
        row = _row(shape, name, _decode_bound(bench, shape, lengths))
        try:
            _decode(bench, worker, ways, lengths, sizes, row)
        except Exception as error:  # a pass that breaks is a result
            bench.failed(f"{shape.name} {name}", error)
        bench.row("passes", **row)


def _decode(
    bench: Bench, worker: ModelWorker, ways: Ways, lengths: list[int], sizes: Sizes,
    row: dict[str, Any],
) -> None:  # fmt: skip
    """Fill the columns of one case, greedy in every way and sampled in the last."""
    batches = decode_batches(worker, lengths, sizes.passes)
    best = 0.0
    for way, use in ways.items():
        use()
        found = in_turn(bench, worker, batches)
        best = _fill(row, way, found.seconds, best)
    found = overlapped(bench, worker, batches)
    best = _fill(row, "overlap", found.seconds, best)
    row["launch ms"] = found.launch * 1e3
    sampled = decode_batches(worker, lengths, sizes.passes, SAMPLED)
    found = overlapped(bench, worker, sampled)
    row |= {"sampled ms": found.seconds * 1e3, "sampled launch ms": found.launch * 1e3}
    if row["goal"] and row["bound ms"]:
        row["reached"] = f"{row['bound ms'] / (best * 1e3):.0%}"


def _others(bench: Bench, shape: ModelShape, worker: ModelWorker, ways: Ways) -> None:
    """Prompts, alone and in one pass with rows that decode. They run eagerly."""
    sizes = sizes_of(bench)
    short = [sizes.context] * (2 if bench.tiny else 63)
    cases: list[tuple[str, int, list[int]]] = [
        ("prefill", sizes.prompt, []),
        (f"prefill of {sizes.chunk}", sizes.chunk, []),
        (f"mixed {len(short)} + {sizes.chunk}", sizes.chunk, short),
    ]
    for name, chunk, lengths in cases:
        if not bench.enough(6, f"{shape.name} {name} and what follows"):
            return
        bound = _prompt_bound(bench, shape, chunk, lengths)
        row = _row(shape, name, bound)
        try:
            batch = prompt_batch(worker, lengths, chunk)
            seconds, launch = _repeated(bench, worker, batch)
        except Exception as error:
            bench.failed(f"{shape.name} {name}", error)
            continue
        best = _fill(row, "eager", seconds, 0.0)
        row["launch ms"] = launch * 1e3
        if row["goal"] and bound:
            row["reached"] = f"{bound / best:.0%}"
        bench.row("passes", **row)


def _repeated(bench: Bench, worker: ModelWorker, batch: Batch) -> tuple[float, float]:
    """Median seconds of a pass alone, and of its launch."""
    worker.run(batch)
    whole, launches = [], []
    for _ in range(1 if bench.tiny else 6):
        bench.sync()
        began = time.perf_counter()
        finish = worker.launch(batch)
        launches.append(time.perf_counter() - began)
        finish()
        whole.append(time.perf_counter() - began)
    return statistics.median(whole), statistics.median(launches)


def _waits(bench: Bench, shape: ModelShape, worker: ModelWorker, ways: Ways) -> None:
    """Launch whole passes while torch raises where anything waits for the device."""
    sizes = sizes_of(bench)
    short = [sizes.context] * 3
    cases: dict[str, Callable[[], Sequence[Batch]]] = {
        "decode": lambda: decode_batches(worker, short, 2, GREEDY),
        "decode, sampled": lambda: decode_batches(worker, short, 2, SAMPLED),
        "prefill": lambda: [prompt_batch(worker, [], sizes.chunk)],
        "mixed": lambda: [prompt_batch(worker, short, sizes.chunk)],
    }
    for way, use in ways.items():
        use()
        for name, make in cases.items():
            outcome = launches_without_waiting(bench, worker, make())
            bench.row("waits", model=shape.name, way=way, launch=name, outcome=outcome)


def launches_without_waiting(bench: Bench, worker: ModelWorker, batches: Sequence[Batch]) -> str:
    """ "nothing waits", or the error that says what does. The first launch compiles and is not
    judged."""
    if not bench.on_gpu:
        return "not checked without a GPU"
    try:
        for batch in batches:
            worker.run(batch)
    except Exception as error:
        return f"broken: {type(error).__name__}: {str(error)[:200]}"
    finishes = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        finishes = [worker.launch(batch) for batch in batches]
        outcome = "nothing waits"
    except RuntimeError as error:
        outcome = f"waits: {str(error)[:200]}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for finish in finishes:
        finish()
    bench.sync()
    return outcome


def _row(shape: ModelShape, name: str, bound: float) -> dict[str, Any]:
    goal = dict(shape.goals).get(name)
    return {
        "model": shape.name, "pass": name, "bound ms": bound * 1e3 or None,
        "goal": f"{goal}%" if goal else None, "reached": None,
    }  # fmt: skip


def _fill(row: dict[str, Any], way: str, seconds: float, best: float) -> float:
    """Add a column; the least seconds so far."""
    row[f"{way} ms"] = seconds * 1e3
    row[f"{way} of bound"] = share(row["bound ms"] or 0.0, seconds * 1e3)
    return min(seconds, best) if best else seconds


def _decode_bound(bench: Bench, shape: ModelShape, lengths: Sequence[int]) -> float:
    rows, keys = len(lengths), sum(lengths)
    moved = bench.dtype.itemsize * (shape.linear(rows) + shape.head + keys * shape.token_values)
    attention = 4 * keys * shape.layers * shape.heads * shape.head_dim
    return bench.bound(moved, 2.0 * rows * (shape.linear() + shape.head) + attention)


def _prompt_bound(bench: Bench, shape: ModelShape, chunk: int, lengths: Sequence[int]) -> float:
    pairs = chunk * (chunk + 1) / 2 + sum(lengths)
    tokens, rows = chunk + len(lengths), 1 + len(lengths)
    operations = 2.0 * tokens * shape.linear() + 2.0 * rows * shape.head
    operations += 4 * pairs * shape.layers * shape.heads * shape.head_dim
    read = shape.linear(tokens) + shape.head + sum(lengths) * shape.token_values
    return bench.bound(bench.dtype.itemsize * read, operations)
