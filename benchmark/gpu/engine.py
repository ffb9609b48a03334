"""Engine: passes of whole models with random weights, at Llama's sizes of 1 and 8 billion.

eager      every kernel launched by itself
graph      decode passes replayed as CUDA graphs
overlap    graphs, each pass queued while the one before it is computed, its tokens by reference

bound      bytes (weights, keys and values) over the copy rate, or operations over the rate of
           products, whichever is longer
goal       share of the bound that a pass is to reach
"""

from __future__ import annotations

import gc
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sglang.ir.sampling import SamplingParams
from sglang.srt.attention.attention_protocol import Capturable
from sglang.srt.attention.backend_choice import build
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, Sample, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.worker.forward import Eager
from sglang.srt.worker.graphs import Again, Graphs
from sglang.srt.worker.model_worker import ModelWorker

from benchmark.gpu.bench import Bench, Table

GREEDY = Sample(SamplingParams(temperature=0.0))


@dataclass(frozen=True)
class Size:
    """A Llama decoder. ``goals``: percent of the bound by what is computed."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    tied: bool
    goals: dict[str, int]

    @property
    def linear(self) -> int:
        """Parameters that every token is multiplied with, but for the head's."""
        head = self.hidden // self.heads
        attention = 2 * self.hidden * head * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def head(self) -> int:
        return self.hidden * self.vocab


DECODE = (1, 32, 256)
SIZES = (
    Size("1 B", 2048, 16, 32, 8, 8192, 128256, True,
         {"decode 1": 75, "decode 32": 65, "decode 256": 70, "prefill": 70}),
    Size("8 B", 4096, 32, 32, 8, 14336, 128256, False,
         {"decode 1": 88, "decode 32": 82, "decode 256": 75, "prefill": 78}),
)  # fmt: skip
TINY = (Size("toy", 64, 2, 4, 2, 96, 160, True, {"decode 1": 75}),)


@dataclass(frozen=True)
class Work:
    context: int
    prompt: int
    batches: tuple[int, ...]
    passes: int


def engine(bench: Bench) -> None:
    table = bench.table("engine")
    work = Work(8, 12, (1, 3), 3) if bench.tiny else Work(1024, 4096, DECODE, 40)
    for size in TINY if bench.tiny else SIZES:
        # Loading and capturing take a while; what was measured already is kept.
        if bench.left < (0 if bench.tiny else 60):
            table.remarks.append(f"left out for time: {size.name}")
            continue
        try:
            _measure(bench, table, size, work)
        except (MemoryError, RuntimeError) as error:
            table.remarks.append(f"{size.name}: {type(error).__name__}: {str(error)[:300]}")
        gc.collect()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def _measure(bench: Bench, table: Table, size: Size, work: Work) -> None:
    with tempfile.TemporaryDirectory() as folder:
        worker = _worker(bench, Path(folder), size, work)
    began = time.perf_counter()
    modes = _modes(bench, worker, table, max(work.batches))
    table.remarks.append(f"{size.name}: graphs made in {time.perf_counter() - began:.1f} s")
    pool = worker.runner.pool
    with torch.inference_mode():
        for tensor in pool.keys + pool.values:
            tensor[:-1].normal_()
    for rows in work.batches:
        name = f"decode {rows}"
        row = _row(size, name, _decode_bound(bench, size, rows, work.context))
        for mode, use in modes.items():
            if bench.left < 3:
                table.remarks.append(f"left out for time: {size.name} {name} {mode}")
                continue
            use()
            _fill(row, mode, _decode(bench, worker, rows, work, ahead=mode == "overlap"))
        table.rows.append(row)
        print(row, flush=True)
    modes["eager"]()
    row = _row(size, "prefill", _prefill_bound(bench, size, work.prompt))
    _fill(row, "eager", _prefill(bench, worker, work.prompt))
    table.rows.append(row)
    print(row, flush=True)


def _row(size: Size, name: str, bound: float) -> dict[str, Any]:
    goal = size.goals.get(name)
    return {
        "model": size.name, "pass": name, "bound ms": bound * 1e3,
        "goal": f"{goal}%" if goal else None,
    }  # fmt: skip


def _fill(row: dict[str, Any], mode: str, seconds: float) -> None:
    row[f"{mode} ms"] = seconds * 1e3
    row[f"{mode} of bound"] = f"{row['bound ms'] / (seconds * 1e3):.0%}"


def _worker(bench: Bench, folder: Path, size: Size, work: Work) -> ModelWorker:
    settings = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": size.hidden,
        "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads, "intermediate_size": size.inner,
        "vocab_size": size.vocab, "tie_word_embeddings": size.tied, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "max_position_embeddings": 8192, "eos_token_id": 0,
        "torch_dtype": str(bench.dtype).removeprefix("torch."),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokens = max(work.batches) * (work.context + 2 * work.passes + 8)
    options: dict[str, Any] = {"cpu_kernels": "torch"} if bench.tiny else {}
    return ModelWorker(
        Config.of(
            model_path=str(folder), load_format="dummy", device=str(bench.device),
            dtype=settings["torch_dtype"], attention_backend=bench.backend,
            max_total_tokens=max(tokens, work.prompt), cuda_graph_max_bs=max(work.batches),
            **options,
        )
    )  # fmt: skip


def _modes(
    bench: Bench, worker: ModelWorker, table: Table, most: int
) -> dict[str, Callable[[], None]]:
    """Functions that switch the worker to each mode."""
    runner: Any = worker.runner
    graphs = runner.forward if isinstance(runner.forward, Graphs) else None
    eager = graphs.eager if graphs else runner.forward
    if graphs is None and bench.tiny:
        graphs = _toy_graphs(bench, worker, eager, most)
    modes: dict[str, Callable[[], None]] = {"eager": lambda: setattr(runner, "forward", eager)}
    if graphs is None:
        table.remarks.append("no graphs: the attention in use cannot be captured")
    else:
        modes["graph"] = lambda: setattr(runner, "forward", graphs)
        modes["overlap"] = modes["graph"]
    return modes


def _toy_graphs(bench: Bench, worker: ModelWorker, eager: Eager, most: int) -> Graphs | None:
    """Graphs on a CPU: the same buffers, the work done again in place of a replay."""
    pool = worker.runner.pool
    attention: Any = eager.attention
    if not isinstance(attention, Capturable):
        try:
            spec = worker.model.spec
            attention = build("triton", pool.keys, pool.values, pool.page_size, spec)
        except ImportError:
            return None
    return Graphs(
        worker.model, attention, Again(), most, 256, pool.pages, pool.page_size, bench.device
    )


def _decode_bound(bench: Bench, size: Size, rows: int, context: int) -> float:
    parameters = size.linear + size.head
    kept = 2 * size.layers * size.kv_heads * (size.hidden // size.heads)
    moved = bench.dtype.itemsize * (parameters + rows * context * kept)
    operations = 2 * rows * parameters + 4 * rows * context * size.layers * size.hidden
    return max(moved / bench.copy, operations / bench.product)


def _prefill_bound(bench: Bench, size: Size, tokens: int) -> float:
    pairs = tokens * (tokens + 1) / 2
    operations = 2 * tokens * size.linear + 2 * size.head + 4 * pairs * size.layers * size.hidden
    return max(bench.dtype.itemsize * size.linear / bench.copy, operations / bench.product)


def _decode(bench: Bench, worker: ModelWorker, rows: int, work: Work, ahead: bool) -> float:
    """Seconds a pass: ``rows`` sequences decode ``passes`` tokens each. Making the batch counts."""
    length = work.context + work.passes + 2
    pages = list(range(worker.runner.pool.pages))
    random.Random(0).shuffle(pages)
    tables = [ints(pages[r * length : (r + 1) * length]) for r in range(rows)]

    def batch(number: int) -> Batch:
        start = work.context - 1 + number
        made = [
            Row(r, start, ints([0]), tables[r][: start + 1], sample=GREEDY) for r in range(rows)
        ]
        for r, row in enumerate(made):
            row.follows = r if number else -1
        return Batch(number, made)

    for _ in range(1 if bench.tiny else 2):
        worker.run(batch(0))
    bench.sync()
    began = time.perf_counter()
    run = _ahead if ahead else _in_turn
    drawn = run(worker, batch, work.passes)
    seconds = time.perf_counter() - began
    assert drawn == rows * work.passes, f"{drawn} tokens were drawn"
    return seconds / work.passes


def _drawn(result: StepResult) -> int:
    return sum(row.token >= 0 for row in result.rows)


def _in_turn(worker: ModelWorker, batch: Callable[[int], Batch], passes: int) -> int:
    return sum(_drawn(worker.run(batch(number))) for number in range(passes))


def _ahead(worker: ModelWorker, batch: Callable[[int], Batch], passes: int) -> int:
    """Run passes as the engine's loop does: a pass is queued before the results of the one before
    are read."""
    drawn, before = 0, worker.launch(batch(0))
    for number in range(1, passes):
        after = worker.launch(batch(number))
        drawn += _drawn(before())
        before = after
    return drawn + _drawn(before())


def _prefill(bench: Bench, worker: ModelWorker, tokens: int) -> float:
    """Seconds of one pass over a prompt."""
    r = random.Random(1)
    vocab = worker.runner.vocab
    row = Row(
        0, 0, ints(r.randrange(vocab) for _ in range(tokens)), ints(range(tokens)), sample=GREEDY
    )

    def run() -> None:
        assert _drawn(worker.run(Batch(0, [row]))) == 1

    return bench.seconds(run, rounds=5, longest=5.0)
