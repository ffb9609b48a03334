"""Workload: a worker with random weights at a model's sizes, and the batches it computes."""

from __future__ import annotations

import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sglang.ir.sampling import SamplingParams
from sglang.srt.attention.attention_protocol import Capturable
from sglang.srt.attention.backend_choice import build
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, Sample
from sglang.srt.core.ints import ints
from sglang.srt.worker.forward import Eager
from sglang.srt.worker.graphs import Again, Graphs
from sglang.srt.worker.model_worker import ModelWorker

from benchmark.gpu.bench import Bench
from benchmark.gpu.shapes import ModelShape

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, top_k=50)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the passes. ``context``: tokens of a decode row; ``prompt``: of a prefill; ``long``:
    (rows, tokens) of long decode rows; ``one``: tokens of the one long row among short ones."""

    context: int
    prompt: int
    chunk: int
    batches: tuple[int, ...]
    long: tuple[int, int]
    one: int
    passes: int
    limit: int

    @property
    def tokens(self) -> int:
        """Tokens that the pool has to hold."""
        spare = self.passes + 4
        decode = max(self.batches) * (self.context + spare)
        skewed = self.one + 40 * (self.context + spare)
        return max(decode, self.long[0] * (self.long[1] + spare), skewed, self.prompt)


FULL = Sizes(1024, 4096, 512, (1, 32, 256), (16, 16384), 100_000, 40, 131072)
TINY_SIZES = Sizes(8, 12, 4, (1, 3), (2, 20), 30, 2, 256)


def sizes_of(bench: Bench) -> Sizes:
    return TINY_SIZES if bench.tiny else FULL


def load(bench: Bench, shape: ModelShape) -> ModelWorker:
    """A worker whose pools hold random values. Raises what loading and capturing raise."""
    sizes = sizes_of(bench)
    dtype = str(bench.dtype).removeprefix("torch.")
    options: dict[str, Any] = {"cpu_kernels": "torch"} if bench.tiny else {}
    with tempfile.TemporaryDirectory() as folder:
        config = shape.config(dtype, sizes.limit)
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        worker = ModelWorker(
            Config.of(
                model_path=folder, load_format="dummy", device=str(bench.device), dtype=dtype,
                max_total_tokens=sizes.tokens, cuda_graph_max_bs=max(sizes.batches),
                **options, **bench.settings,
            )
        )  # fmt: skip
    pool = worker.runner.pool
    with torch.inference_mode():
        for tensor in pool.keys + pool.values:
            tensor[:-1].normal_()
    return worker


def each(
    bench: Bench,
    shapes: Sequence[ModelShape],
    seconds: float,
    measure: Callable[[Bench, ModelShape], None],
) -> None:
    """Measure models in turn, each where ``seconds`` are left. Raises what the first one raises, so
    that another mode is tried."""
    for number, shape in enumerate(shapes):
        # Loading and capturing take a while; what was measured already is kept.
        if not bench.enough(seconds, shape.name):
            return
        try:
            measure(bench, shape)
        except Exception as error:
            if not number:
                raise
            bench.failed(shape.name, error)
        free(bench)


def free(bench: Bench) -> None:
    """Give the device's memory back, after the last name of a worker is deleted."""
    gc.collect()
    if bench.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.device)


def modes(bench: Bench, worker: ModelWorker) -> dict[str, Callable[[], None]]:
    """Functions that switch the worker to each of its ways to compute a decode pass."""
    runner: Any = worker.runner
    graphs = runner.forward if isinstance(runner.forward, Graphs) else None
    eager = graphs.eager if graphs else runner.forward
    if graphs is None and bench.tiny and not bench.settings.get("disable_cuda_graph"):
        graphs = _toy_graphs(bench, worker, eager)
    found: dict[str, Callable[[], None]] = {"eager": lambda: setattr(runner, "forward", eager)}
    if graphs is None:
        bench.remark("no graphs: they are off, or the attention in use cannot be captured")
        return found
    return found | {"graph": lambda: setattr(runner, "forward", graphs)}


def _toy_graphs(bench: Bench, worker: ModelWorker, eager: Eager) -> Graphs | None:
    """Graphs on a CPU: the same buffers, the work done again in place of a replay."""
    pool, sizes = worker.runner.pool, sizes_of(bench)
    attention: Any = eager.attention
    try:
        if not isinstance(attention, Capturable):
            spec = worker.model.spec
            attention = build("triton", pool.keys, pool.values, pool.page_size, spec)
        return Graphs(worker.model, attention, Again(), pool, max(sizes.batches), sizes.limit)
    except Exception as error:  # no Triton here, or no interpreter
        bench.failed("no graphs", error)
        return None


def decode_batches(
    worker: ModelWorker, lengths: Sequence[int], passes: int, params: SamplingParams = GREEDY
) -> list[Batch]:
    """Passes in which rows of ``lengths`` tokens decode one token each. The first sends whole page
    tables; the others one page a row, and take their token from the pass before."""
    tables = page_tables(worker, [length + passes for length in lengths])
    made = []
    for number in range(passes):
        rows = []
        for r, length in enumerate(lengths):
            start = length - 1 + number
            kept = start if number else 0
            row = Row(
                r, start, ints([0]), tables[r][kept : start + 1], kept=kept,
                sample=Sample(params, uniform=((r * 37 + number * 11) % 100) / 100),
            )  # fmt: skip
            row.follows = r if number else -1
            rows.append(row)
        made.append(Batch(number, rows))
    return made


def prompt_batch(worker: ModelWorker, lengths: Sequence[int], chunk: int) -> Batch:
    """A pass over ``chunk`` tokens of a new prompt, together with rows of ``lengths`` that
    decode."""
    tables = page_tables(worker, [chunk, *lengths])
    r = random.Random(1)
    tokens = ints(r.randrange(worker.runner.reader.vocab) for _ in range(chunk))
    rows = [Row(0, 0, tokens, tables[0], sample=Sample(GREEDY))]
    for number, length in enumerate(lengths, 1):
        rows.append(
            Row(number, length - 1, ints([0]), tables[number][:length], sample=Sample(GREEDY))
        )
    return Batch(0, rows)


def page_tables(worker: ModelWorker, lengths: Sequence[int]) -> list[Any]:
    """A table of scattered pages for each length."""
    pages = list(range(worker.runner.pool.pages))
    random.Random(0).shuffle(pages)
    if sum(lengths) > len(pages):
        raise MemoryError(f"{sum(lengths)} tokens do not fit into {len(pages)} pages")
    found, first = [], 0
    for length in lengths:
        found.append(ints(pages[first : first + length]))
        first += length
    return found


@dataclass(frozen=True)
class Decoded:
    """Seconds a pass, and seconds of the host in one ``launch``."""

    seconds: float
    launch: float


def in_turn(bench: Bench, worker: ModelWorker, batches: Sequence[Batch]) -> Decoded:
    """Each pass is launched after the results of the one before are read."""
    return _run(bench, worker, batches, ahead=False)


def overlapped(bench: Bench, worker: ModelWorker, batches: Sequence[Batch]) -> Decoded:
    """Each pass is launched before the results of the one before are read, as the engine does."""
    return _run(bench, worker, batches, ahead=True)


def _run(bench: Bench, worker: ModelWorker, batches: Sequence[Batch], ahead: bool) -> Decoded:
    for _ in range(1 if bench.tiny else 2):
        worker.run(batches[0])
    bench.sync()
    launches, sampled, before = [], 0, None
    began = time.perf_counter()
    for batch in batches:
        first = time.perf_counter()
        finish = worker.launch(batch)
        launches.append(time.perf_counter() - first)
        if not ahead:
            sampled += _sampled(finish)
        elif before is not None:
            sampled += _sampled(before)
        before = finish
    if ahead and before is not None:
        sampled += _sampled(before)
    seconds = time.perf_counter() - began
    wanted = sum(len(batch.rows) for batch in batches)
    if sampled != wanted:
        raise RuntimeError(f"{sampled} tokens were sampled and not {wanted}")
    return Decoded(seconds / len(batches), sorted(launches)[len(launches) // 2])


def _sampled(finish: Callable[[], Any]) -> int:
    return sum(row.token >= 0 for row in finish().rows)
