"""Random passes of a worker, whose texts mean nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sglang.srt.core.batch import Batch, Row, RowScore
from sglang.srt.core.ints import Ints, ints
from sglang.srt.worker.runner import ModelRunner
from sglang.srt.worker.warm_up import samples


@dataclass(frozen=True)
class PassSizes:
    """The most rows and new tokens of a pass, and tokens of a context."""

    rows: int
    tokens: int
    length: int


class RandomPasses:
    """Batches of rows of all kinds. Some rows begin with the pages of another."""

    def __init__(self, seed: int, sizes: PassSizes, runner: ModelRunner) -> None:
        self.r, self.sizes, self.pool = random.Random(seed), sizes, runner.pool
        self.vocab, self.samples = runner.reader.vocab, list(samples(runner.reader.vocab).values())
        self.prefix = self.table(sizes.length)

    def table(self, length: int) -> Ints:
        return ints(
            [self.r.randrange(self.pool.pages) for _ in range(-(-length // self.pool.page_size))]
        )

    def row(self, context: int, most: int) -> Row:
        r, length = self.r, self.sizes.length
        count = 1 if r.random() < 0.6 else r.randint(1, r.choice([4, 40, most]))
        count = min(count, most)
        start = min(r.choice([0, r.randrange(20), r.randrange(length)]), length - count)
        table = self.table(start + count)
        if r.random() < 0.5:
            common = r.randrange(len(table))
            table[:common] = self.prefix[:common]
        tokens = ints([r.randrange(self.vocab) for _ in range(count)])
        row = Row(context, start, tokens, table)
        kind = r.random()
        if kind < 0.7:
            row.sample = r.choice(self.samples)
        elif kind < 0.8:
            row.score = RowScore(0, tokens, top=r.choice([0, 3]))
        if row.sample is not None and count > 1 and r.random() < 0.3:
            row.checks = [row.sample] * r.randrange(1, count)
        return row

    def batch(self, number: int) -> Batch:
        rows: list[Row] = []
        left, most = self.r.randint(1, self.sizes.tokens), self.r.choice([1, 2, 8, self.sizes.rows])
        while left > 0 and len(rows) < most:
            rows.append(self.row(len(rows), left))
            left -= len(rows[-1].tokens)
        if self.r.random() < 0.4:  # a pass that decodes alone
            rows = [row for row in rows if len(row.tokens) == 1] or rows[:1]
        return Batch(number, rows)
