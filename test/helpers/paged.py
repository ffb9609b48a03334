"""Driving the worker row by row, with pages scattered at random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from helpers.wired import Wired
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, Sample, StepResult
from sglang.srt.core.ints import Ints, ints
from sglang.srt.worker.model_worker import ModelWorker
from sglang.srt.worker.page_tables import PageTables
from torch import Tensor


@dataclass
class Sequence:
    """Tokens, the page table that grows with them, and the logits seen so far."""

    tokens: list[int]
    pages: Ints = field(default_factory=ints)
    done: int = 0
    logits: list[Tensor] = field(default_factory=list)

    @property
    def result(self) -> Tensor:
        return torch.cat(self.logits)


class Paged:
    """A worker, and a pool from which pages are taken in random order."""

    def __init__(self, path: str, page_size: int, seed: int, **settings: Any) -> None:
        settings = {"max_total_tokens": 1024, "dtype": "float32", "device": "cpu", **settings}
        config = Config.of(model_path=path, page_size=page_size, **settings)
        self.worker, self.page_size = ModelWorker(config), page_size
        self.free = list(range(self.worker.info["capacity"] // page_size))
        random.Random(seed).shuffle(self.free)
        self.batches = 0

    def row(self, sequence: Sequence, count: int, **wanted: Any) -> Row:
        """The next ``count`` tokens; takes the pages they need."""
        start, end = sequence.done, sequence.done + count
        while len(sequence.pages) * self.page_size < end:
            sequence.pages.append(self.free.pop())
        sequence.done = end
        return Row(0, start, ints(sequence.tokens[start:end]), sequence.pages[:], **wanted)

    def run(self, rows: list[Row]) -> StepResult:
        self.batches += 1
        return Wired(self.worker).launch(Batch(self.batches, rows))()

    @torch.inference_mode()
    def logits(self, rows: list[Row]) -> list[Tensor]:
        """Logits of every token of every row, in one pass."""
        runner, pool = self.worker.runner, self.worker.runner.pool
        reader = replace(runner.reader, tables=PageTables(pool.pages, pool.page_size))
        inputs = reader.read(Batch(0, rows))
        hidden = runner.forward.hidden(inputs, np.arange(len(inputs.tokens), dtype=np.int32))
        logits = torch.as_tensor(runner.forward.logits(hidden))  # an array without torch
        return list(logits.split([len(row.tokens) for row in rows]))

    def advance(self, steps: list[tuple[Sequence, int]]) -> None:
        """One pass over the next tokens of several sequences."""
        outputs = self.logits([self.row(sequence, count) for sequence, count in steps])
        for (sequence, _), out in zip(steps, outputs):
            sequence.logits.append(out)

    def greedy(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """``count`` tokens after each prompt, all sequences in one batch."""
        sequences = [Sequence(list(prompt)) for prompt in prompts]
        sample = Sample(SamplingParams(temperature=0.0))
        for _ in range(count):
            rows = [self.row(s, len(s.tokens) - s.done, sample=sample) for s in sequences]
            for sequence, output in zip(sequences, self.run(rows).rows):
                assert not output.error, output.error
                sequence.tokens.append(output.token)
        return [s.tokens[len(p) :] for s, p in zip(sequences, prompts)]
