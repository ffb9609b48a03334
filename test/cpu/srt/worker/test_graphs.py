"""Replayed decode passes, with work that is done again in place of CUDA graphs."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import fake_flashinfer
from helpers.paged import Paged, Sequence
from helpers.tiny_model import write_config
from sglang.ir.sampling import SamplingParams
from sglang.srt.attention import flashinfer_attention
from sglang.srt.attention.backend_choice import build
from sglang.srt.core.batch import Batch, Row, RowScore, Sample
from sglang.srt.core.ints import ints
from sglang.srt.worker import graphs
from sglang.srt.worker.forward import Eager
from sglang.srt.worker.graphs import Again, Graphs, buckets

GREEDY = Sample(SamplingParams(temperature=0.0))


class Counting(Again):
    """Counts replays, and lets nothing but the static buffers into them."""

    def __init__(self) -> None:
        self.recorded, self.replayed = 0, 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        again = super().record(work)
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            again()

        return replay


@pytest.fixture
def path(tmp_path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(flashinfer_attention, "SCHEDULE", 1 << 10)
    return write_config(tmp_path, head_dim=16, sliding_window=None)


def paged(path: str, most: int, page_size: int = 1, **settings: Any) -> tuple[Paged, Counting]:
    """A worker of FlashInfer's stand-in; with ``most``, graphs of up to so many rows."""
    settings = {"load_format": "dummy", "cpu_kernels": "torch", **settings}
    out, recorder = Paged(path, page_size, 0, **settings), Counting()
    worker = out.worker
    pool = worker.runner.pool
    with torch.inference_mode():
        for tensor in pool.keys + pool.values:
            tensor.zero_()
    attention: Any = build("flashinfer", pool.keys, pool.values, page_size, worker.model.spec)
    worker.runner.forward = Eager(worker.model, attention)
    if most:
        worker.runner.forward = Graphs(worker.model, attention, recorder, pool, most, 256)
    return out, recorder


@pytest.mark.parametrize(
    ("most", "want"),
    [
        (1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 20]),
        (256, [1, 2, 4, 8, *range(16, 257, 8)]),
    ],
)  # fmt: skip
def test_buckets(most: int, want: list[int]) -> None:
    assert buckets(most) == want


@pytest.mark.parametrize("page_size", [1, 4])
def test_text_is_the_same_as_without_graphs(path: str, page_size: int) -> None:
    """Rows of all kinds come and go; decode passes are replayed, the others are not."""
    texts: list[list[list[int]]] = []
    for most in (0, 6):
        worker, recorder = paged(path, most, page_size)
        r, running, done = random.Random(5), [], []
        decoded = 0
        for step in range(30):
            fresh = [Sequence([r.randrange(160) for _ in range(r.randint(1, 9))])
                     for _ in range(r.choice([0, 0, 0, 1, 2]) if step < 22 else 0)]  # fmt: skip
            running += fresh
            if not running:
                continue
            rows = [worker.row(s, len(s.tokens) - s.done, sample=GREEDY) for s in running]
            decoded += all(len(row.tokens) == 1 for row in rows) and len(rows) <= 6
            for sequence, output in zip(running, worker.run(rows).rows):
                assert not output.error
                sequence.tokens.append(output.token)
            ended = [s for s in running if len(s.tokens) > 14]
            done += ended
            running = [s for s in running if s not in ended]
        texts.append([s.tokens for s in done + running])
        assert recorder.replayed == (decoded if most else 0)
        assert recorder.recorded == (len(buckets(6)) if most else 0)
    assert texts[0] == texts[1]
    assert len(texts[0]) > 8


def test_padding_changes_no_bit_of_a_row(path: str) -> None:
    """Stale contents of the buffers behind the rows of a pass do not matter."""
    results = []
    for stale in (0, 7, 159):
        worker, _ = paged(path, 8)
        forward: Any = worker.worker.runner.forward
        prompts = [Sequence([3, 1, 4, 1, 5, 9, 2, 6][: n + 2]) for n in range(5)]
        worker.run([worker.row(s, len(s.tokens) - 1) for s in prompts])
        forward.buffers.tokens.fill_(stale)
        forward.buffers.positions.fill_(stale)
        rows = [worker.row(s, 1) for s in prompts]
        results.append(worker_states(worker, rows))
        pool = worker.worker.runner.pool
        results[-1] += [keys[:-1].clone() for keys in pool.keys]
    for other in results[1:]:
        for mine, theirs in zip(results[0], other):
            assert torch.equal(mine, theirs)


@torch.inference_mode()
def worker_states(worker: Paged, rows: list[Row]) -> list[torch.Tensor]:
    """Hidden states and logits of a pass."""
    runner = worker.worker.runner
    inputs = runner.reader.read(Batch(0, rows))
    every = np.arange(len(rows), dtype=np.int32)
    hidden = runner.forward.hidden(inputs, every)
    return [hidden.clone(), runner.forward.logits(hidden).clone()]


def test_only_the_padding_slot_is_written_beside_the_rows(path: str) -> None:
    worker, recorder = paged(path, 8)
    pool = worker.worker.runner.pool
    sequence = Sequence([5, 6, 7])
    worker.run([worker.row(sequence, 2)])
    before = [tensor.clone() for tensor in pool.keys + pool.values]
    worker.run(
        [worker.row(sequence, 1), worker.row(Sequence([8]), 1), worker.row(Sequence([9]), 1)]
    )
    assert recorder.replayed == 1
    written = {sequence.pages[2], pool.pages}
    for tensor, was in zip(pool.keys + pool.values, before):
        changed = (tensor != was).flatten(1).any(1).nonzero().flatten().tolist()
        assert sequence.pages[2] in changed
        assert len(set(changed) - written) == 2, "the pages of the two others"


def test_logits_come_from_the_graph_where_they_are_small_enough(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LOGITS", 3 * 160)  # LOGITS holds buckets 1 and 2, not 4
    worker, recorder = paged(path, 4)
    forward: Any = worker.worker.runner.forward
    assert forward.buffers.scores.shape == (2, 160)
    calls: list[int] = []
    logits = worker.worker.model.logits
    monkeypatch.setattr(worker.worker.model, "logits", lambda x: calls.append(len(x)) or logits(x))
    for rows, want in ((2, [2]), (3, [3])):
        calls.clear()
        made = [worker.row(Sequence([4 + i]), 1, sample=GREEDY) for i in range(rows)]
        assert len(worker.run(made).rows) == rows
        # With two rows the only product is the replayed one; three rows compute theirs after it.
        assert calls == want
    # Only the rows that sample are picked from the states if others do not.
    calls.clear()
    both = [worker.row(Sequence([4]), 1, sample=GREEDY), worker.row(Sequence([5]), 1)]
    picked = worker.run(both).rows
    assert calls == [2, 1]
    assert (picked[0].token >= 0, picked[1].token) == (True, -1)
    assert recorder.replayed == 3


def test_what_does_not_fit_runs_eagerly(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "TABLE", 4)
    worker, recorder = paged(path, 2, max_total_tokens=40)
    forward: Any = worker.worker.runner.forward
    assert forward.table == 42, "the pool's pages and one for each row"
    want, _ = paged(path, 0, max_total_tokens=40)
    tokens = [9, 8, 7, 6]
    for one in (worker, want):
        one.results = []  # type: ignore[attr-defined]
        sequence = Sequence(list(tokens))
        row = one.row(sequence, 4, sample=GREEDY)
        one.results.append(one.run([row]).rows[0].token)  # type: ignore[attr-defined]
        sequence.tokens.append(3)
        row = one.row(sequence, 1, sample=GREEDY)
        # The same pages again and again: the tables of a pass may be longer than the pool.
        pages = ints([*sequence.pages[:4]] + [sequence.pages[4]] * 36)
        long = [Row(context, 39, ints([3]), pages, sample=GREEDY) for context in (1, 2)]
        one.results.append(one.run(long).rows[0].token)  # type: ignore[attr-defined]
        one.results.append(one.run([row]).rows[0].token)  # type: ignore[attr-defined]
        three = [one.row(Sequence([i]), 1, sample=GREEDY) for i in range(3)]
        one.results += [o.token for o in one.run(three).rows]  # type: ignore[attr-defined]
    assert worker.results == want.results  # type: ignore[attr-defined]
    assert recorder.replayed == 1


def test_rows_follow_tokens_and_are_scored(path: str) -> None:
    """Placeholders are filled on the device; log-probabilities are read from replayed passes."""
    results = []
    for most in (0, 4):
        worker, recorder = paged(path, most)
        sequences = [Sequence([11, 12, 13]), Sequence([21, 22])]
        rows = [worker.row(s, len(s.tokens), sample=GREEDY) for s in sequences]
        got: list[Any] = [[o.token for o in worker.run(rows).rows]]
        for _ in range(5):
            rows = []
            for i, s in enumerate(sequences):
                s.tokens.append(-1)
                rows.append(worker.row(s, 1, sample=Sample(GREEDY.params, top=1)))
                rows[-1].follows = i
            outputs = worker.run(rows).rows
            got.append([(o.token, round(o.logprob, 4)) for o in outputs])
        last = worker.row(Sequence([5]), 1, score=RowScore(0, ints([9]), top=2))
        got.append([round(x, 4) for x in worker.run([last]).rows[0].scores])
        results.append(got)
        assert recorder.replayed == (6 if most else 0)
    assert results[0] == results[1]
