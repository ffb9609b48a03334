"""Rows with positions and page tables of their own, against dense attention of ``transformers``
with the same 4D mask and position ids, in float32, by native kernels and by torch."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from helpers import hf_models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang.srt.config import Config
from sglang.srt.core.batch import LOOSE, WHOLE, Batch, Row, TokenCopies
from sglang.srt.core.ints import ints
from sglang.srt.spaces.mask_runs import mask_runs
from sglang.srt.worker.model_worker import ModelWorker

ARCHITECTURES = ("LlamaForCausalLM", "GPT2LMHeadModel")  # rotated and learnt positions
TOLERANCE = 1e-4
SLOTS, POSITIONS = 512, 100


class Dense:
    """The reference model: ``transformers`` computes it in eager attention."""

    def __init__(self, model: Any) -> None:
        self.model = model.float().eval()
        self.model.set_attn_implementation("eager")

    def logprobs(self, tokens: list[int], positions: list[int], sees: np.ndarray) -> np.ndarray:
        """[n, vocabulary]; ``sees``: bool [n, n]."""
        hidden = torch.finfo(torch.float32).min
        mask = torch.from_numpy(np.where(sees, 0.0, hidden).astype(np.float32))[None, None]
        with torch.no_grad():
            logits = self.model(
                input_ids=torch.tensor([tokens]), position_ids=torch.tensor([positions]),
                attention_mask=mask,
            ).logits[0]  # fmt: skip
        return torch.log_softmax(logits.float(), -1).numpy()


class Pair(NamedTuple):
    worker: ModelWorker
    dense: Dense


@pytest.fixture(scope="module", params=product(ARCHITECTURES, ("native", "torch")), ids="-".join)
def pair(request: Any, tmp_path_factory: Any) -> Pair:
    """A random small model, by both."""
    architecture, kernels = request.param
    model = hf_models.make(architecture, 0, max_position_embeddings=256)
    path = hf_models.save(model, tmp_path_factory.mktemp(architecture))
    config = Config.of(
        model_path=str(path), cpu_kernels=kernels, dtype="float32", max_total_tokens=SLOTS
    )
    worker = ModelWorker(config)
    assert (worker.info["kernels"] == "torch") == (kernels == "torch")
    return Pair(worker, Dense(model))


@pytest.fixture
def worker(pair: Pair) -> ModelWorker:
    return pair.worker


def _rows(
    tokens: np.ndarray, positions: np.ndarray, slots: np.ndarray, sees: np.ndarray, first: int
) -> list[tuple[int, Row]]:
    """Rows of the tokens from ``first`` on, with the index of each one's last token."""
    count = len(tokens) - first
    packed = np.packbits(sees[first:], axis=1, bitorder="little").tobytes()
    rows = []
    for run in mask_runs(packed, first, count):
        own = slice(first + run.first, first + run.last)
        pages = np.concatenate([slots[run.seen], slots[own]])
        row = Row(LOOSE, len(run.seen), ints(tokens[own]), ints(pages))
        row.positions, row.packed = ints(positions[own]), WHOLE
        rows.append((own.stop - 1, row))
    return rows


def _run(worker: ModelWorker, number: int, rows: list[Row], **more: Any) -> list[np.ndarray]:
    result = worker.run(Batch(number, rows, **more))
    assert all(not out.error and not out.ids for out in result.rows)
    return [np.frombuffer(out.logprobs, dtype=np.float32) for out in result.rows]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_agree_with_dense_attention(pair: Pair, seed: int) -> None:
    """Random tokens at random positions under random masks in random slots: a first pass, copies
    of some of its KV elsewhere, and a second pass that sees both."""
    worker, dense = pair
    rng = np.random.default_rng(seed)
    before, count = int(rng.integers(1, 40)), int(rng.integers(1, 14))
    total = before + count
    tokens = rng.integers(0, worker.info["vocab_size"], total)
    positions = rng.integers(0, POSITIONS, total)  # gaps, repetitions and any order
    slots = rng.permutation(SLOTS)[:total]
    sees = rng.random((total, total)) < rng.choice([0.2, 0.6, 0.95, 1.0])
    sees = np.tril(sees)
    np.fill_diagonal(sees, True)
    wanted = dense.logprobs(tokens.tolist(), positions.tolist(), sees)

    first = _rows(tokens[:before], positions[:before], slots[:before], sees[:before, :before], 0)
    got = _run(worker, 1, [row for _, row in first])
    moved = np.flatnonzero(rng.random(before) < 0.3)
    places = rng.permutation(np.setdiff1d(np.arange(SLOTS), slots))[: len(moved)]
    copies = TokenCopies(ints(slots[moved]), ints(places)) if len(moved) else None
    slots[moved] = places
    second = _rows(tokens, positions, slots, sees, before)
    got += _run(worker, 2, [row for _, row in second], copies=copies)
    for (at, _), logprobs in zip([*first, *second], got, strict=True):
        assert np.abs(logprobs - wanted[at]).max() < TOLERANCE


def test_positions_matter(pair: Pair) -> None:
    """The control: without the positions of its own, a row's distribution is another one."""
    worker, dense = pair
    tokens, positions = list(range(20, 40)), [*range(19), 90]
    wanted = dense.logprobs(tokens, positions, np.tri(20, dtype=bool))
    row = Row(LOOSE, 0, ints(tokens), ints(range(20)), packed=WHOLE)
    (without,) = _run(worker, 1, [row])
    row.positions = ints(positions)
    (got,) = _run(worker, 2, [row])
    assert np.abs(got - wanted[-1]).max() < TOLERANCE
    assert np.abs(without - wanted[-1]).max() > 100 * TOLERANCE


def test_packed_tokens_are_the_most_likely_ones(worker: ModelWorker) -> None:
    rows = [
        Row(LOOSE, 0, ints([20 + i]), ints([i]), packed=k) for i, k in enumerate((3, 0, WHOLE, 5))
    ]
    rows[1].tip_top = 4
    outs = worker.run(Batch(1, rows)).rows
    assert [len(out.ids) // 4 for out in outs] == [3, 0, 0, 5]
    whole = np.frombuffer(outs[2].logprobs, dtype=np.float32)
    assert len(whole) == worker.info["vocab_size"]
    again = worker.run(Batch(2, [Row(LOOSE, 0, ints([22]), ints([2]), packed=7)])).rows[0]
    ids = np.frombuffer(again.ids, dtype=np.int32)
    values = np.frombuffer(again.logprobs, dtype=np.float32)
    assert np.allclose(whole[ids], values, atol=1e-6)
    assert values[-1] >= np.sort(whole)[-7] - 1e-6
    assert (np.diff(values) <= 0).all()


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row(LOOSE, 0, ints([5]), ints([0]), positions=ints([1, 2])), "has 2 positions for 1"),
        (Row(LOOSE, 0, ints([5]), ints([0]), positions=ints([-1])), "a position outside"),
        (Row(LOOSE, 0, ints([5]), ints([0]), positions=ints([10**6])), "a position outside"),
        (Row(LOOSE, 0, ints([5]), ints([SLOTS])), "a page outside"),
        (Row(LOOSE, 3, ints([5]), ints([0])), "too few pages"),
    ],
)  # fmt: skip
def test_rows_outside_the_model_or_the_pool_are_refused(
    worker: ModelWorker, row: Row, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        worker.run(Batch(1, [row]))


def test_copies_outside_the_pool_are_refused(worker: ModelWorker) -> None:
    for pair in ((0, SLOTS), (SLOTS, 0), (-1, 0)):
        copies = TokenCopies(ints(pair[:1]), ints(pair[1:]))
        with pytest.raises(ValueError, match="a slot outside"):
            worker.run(Batch(1, [], copies=copies))
