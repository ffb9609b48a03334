"""Warm-up: passes that launch every kernel that serving can launch, before the first request.

A variant of a kernel is compiled when it is first launched: for seconds by Triton, for a minute by
FlashInfer. These passes go through the sizes and options on which the choice of a variant depends,
so that no request waits for a compiler. They use the same code as any batch.

    prompts     of 2, 4, 8 ... tokens, up to the limit of a pass
    rows        batches of 1, 2, 4 ... rows with one new token each
    contexts    of 1, 4, 16 ... tokens, alone and together with a prompt
    prefixes    shared by 2, 4, 8 ... rows
    samples     of every kind, for one row and for several

Rows read and write the first pages of the pool, which hold no KV of requests yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, RowScore, Sample
from sglang.srt.core.ints import ints
from sglang.srt.logits.drawing import mask_bytes
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.models.weights import progress
from sglang.srt.numeric.torch_later import torch
from sglang.srt.worker.graphs import Graphs
from sglang.srt.worker.runner import ModelRunner

if TYPE_CHECKING:
    from sgl_kernel.triton.compilations import Compilations

log = logging.getLogger("sglang.srt.worker")
# Tokens of the longest pass in the warm-up if --chunked-prefill-size sets no limit.
LONGEST = 8192
# Rows that share a prefix, and tokens of that prefix: larger numbers select no other kernel.
SHARERS, SHARED = 128, 1024


@dataclass(frozen=True)
class WarmUpLimits:
    """Sizes that serving can reach.

    Attributes:
        rows: maximum number of requests in a pass.
        tokens: maximum number of new tokens in a pass; below 1: unlimited.
        generates: the model has an LM head.
    """

    rows: int
    tokens: int
    generates: bool

    @classmethod
    def of(cls, config: Config, spec: ModelSpec) -> WarmUpLimits:
        """Return the limits that follow from the settings and the model's purpose."""
        schedule = config.schedule
        return cls(
            schedule.max_running_requests, schedule.chunked_prefill_size,
            spec.purpose == "generate",
        )  # fmt: skip


def warm_up(runner: ModelRunner, limits: WarmUpLimits) -> int:
    """Compute all passes, with a progress bar on a terminal. Return the number of passes.

    Raises MemoryError if the device has too little memory for a pass.
    """
    steps, began = list(batches(runner, limits)), time.perf_counter()
    with progress(len(steps), "compiling kernels", unit=" passes") as bar:
        for label, batch in steps:
            bar.set_postfix_str(label)
            try:
                runner.launch(batch)()
            except torch.OutOfMemoryError as error:
                raise MemoryError(
                    f"the device has no memory left for a pass of {label}; lower "
                    "mem_fraction_static, chunked_prefill_size or max_running_requests."
                ) from error
            bar.update(1)
    runner.reader.tables.drop(range(-limits.rows, 0))
    log.info("warmed up by %d passes in %.1f s", len(steps), time.perf_counter() - began)
    return len(steps)


def warm_up_both(runner: ModelRunner, limits: WarmUpLimits) -> None:
    """Call ``warm_up``. For a runner with graphs, warm up its eager passes first, which compute
    rows with adapters or images."""
    forward = runner.forward
    if isinstance(forward, Graphs):
        runner.forward = forward.eager
        warm_up(runner, limits)
        runner.forward = forward
    warm_up(runner, limits)


def compilations_on(device: torch.device) -> Compilations | None:
    """Return this process's counter of compiled kernels; None without a GPU or Triton."""
    if device.type != "cuda" or find_spec("triton") is None or find_spec("sgl_kernel") is None:
        return None
    from sgl_kernel.triton.compilations import compilations

    return compilations()


def batches(runner: ModelRunner, limits: WarmUpLimits) -> Iterator[tuple[str, Batch]]:
    """Yield the passes that fit into the runner's context length, each with its name."""
    for label, batch in _batches(runner, limits):
        if all(row.start + len(row.tokens) <= runner.reader.context_length for row in batch.rows):
            yield label, batch


def _batches(runner: ModelRunner, limits: WarmUpLimits) -> Iterator[tuple[str, Batch]]:
    rows = _Rows(runner, limits.generates)
    length, tokens = runner.reader.context_length, limits.tokens if limits.tokens > 0 else LONGEST
    for count in _doubling(2, min(tokens, length)):
        yield f"a prompt of {count} tokens", _batch(rows.one(0, 0, count))
    for count in _doubling(1, limits.rows):
        yield f"{count} rows", _batch(*(rows.one(i, 0, 1) for i in range(count)))
    # A row with two new tokens prevents a pass from being replayed as a graph.
    beside = [rows.one(limits.rows - 1, 0, 2)] if limits.rows > 1 else []
    for seen in _doubling(1, length, by=4):
        yield f"a row of {seen} tokens", _batch(rows.one(0, seen - 1, 1))
        yield f"a row of {seen} beside a prompt", _batch(rows.one(0, seen - 1, 1), *beside)
    shared = min(SHARED, length - 1)
    for count in _doubling(2, min(limits.rows - len(beside), SHARERS)):
        sharers = [rows.one(i, shared, 1, page=0) for i in range(count)]
        yield f"{count} rows of one prefix", _batch(*sharers)
        yield f"{count} rows of one prefix beside a prompt", _batch(*sharers, *beside)
    if limits.generates:
        yield from _sampled(rows, runner.reader.vocab, limits.rows)
    yield "a sum of states", _batch(rows.one(0, 0, 2, pool=0))


def _sampled(rows: _Rows, vocab: int, most: int) -> Iterator[tuple[str, Batch]]:
    """Yield passes with samples of every kind, with drafts to verify and with scores."""
    kinds = samples(vocab)
    for count in {1, min(8, most)}:
        for name, sample in kinds.items():
            group = [rows.one(i, 0, 1, sample=sample) for i in range(count)]
            yield f"{count} {name} samples", _batch(*group)
    mixed = [rows.one(i, 0, 1, sample=s) for i, s in enumerate(kinds.values())]
    yield "samples of several kinds", _batch(*mixed[:most])
    greedy = kinds["greedy"]
    yield "drafts", _batch(rows.one(0, 0, 4, sample=greedy, checks=[greedy] * 3))
    score = RowScore(0, ints([0, 0]), top=2, probe=(0,))
    yield "scores", _batch(rows.one(0, 0, 3, score=score))


def samples(vocab: int) -> dict[str, Sample]:
    """Return a sample of each kind that launches other kernels, by name."""
    one, mask = ints([0]), b"\xff" * mask_bytes(vocab)
    plain = SamplingParams(temperature=1.0)
    return {
        "greedy": Sample(SamplingParams(temperature=0.0)),
        "plain": Sample(plain, uniform=0.5),
        "filtered": Sample(SamplingParams(top_k=20, top_p=0.9, min_p=0.05), uniform=0.5),
        "penalised": Sample(
            SamplingParams(frequency_penalty=0.5, repetition_penalty=1.1), history=one, prompt=one
        ),
        "biased": Sample(SamplingParams(logit_bias={0: 1.0}), forbidden=(0,)),
        "masked": Sample(plain, mask=mask),
        "greedy masked": Sample(SamplingParams(temperature=0.0), mask=mask),
        "reported": Sample(plain, top=5),
        "reported masked": Sample(plain, mask=mask, top=5, masked=True),
    }


class _Rows:
    """Makes rows over the pool's first pages, with contexts below 0, which requests never have."""

    def __init__(self, runner: ModelRunner, generates: bool) -> None:
        self.pages, self.page_size = runner.pool.pages, runner.pool.page_size
        self.sample = Sample(SamplingParams(temperature=0.0)) if generates else None

    def one(self, index: int, start: int, count: int, page: int = -1, **wanted: Any) -> Row:
        """Return row ``index`` of a batch, with ``count`` new tokens from position ``start`` on.
        ``page``: page of all table entries; -1: page ``index``, modulo the pool's pages."""
        entries = -(-(start + count) // self.page_size)
        table = ints([index % self.pages if page < 0 else page]) * entries
        if not wanted:
            wanted = {"pool": count - 1} if self.sample is None else {"sample": self.sample}
        return Row(-1 - index, start, ints([0]) * count, table, **wanted)


def _batch(*rows: Row) -> Batch:
    return Batch(0, list(rows))


def _doubling(low: int, high: int, by: int = 2) -> Iterator[int]:
    """Yield ``low``, ``low * by``, ``low * by * by``, ... below ``high``, then ``high``."""
    while low < high:
        yield low
        low *= by
    if low == high or low // by < high:
        yield high
