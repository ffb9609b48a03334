"""Page tables that a worker keeps: against lists, and what does not fit is refused."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tables import Tables
from helpers.wired import encode
from hypothesis import given
from hypothesis import strategies as st
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.batch import LOOSE, Batch, Row
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.messages import Advance, Failed, Generate, Open, Tokens
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Executor, Inline, Threaded, load_worker
from sglang.srt.schedule.scheduler import Reserve
from sglang.srt.worker.inputs import InputReader
from sglang.srt.worker.page_tables import PageTables

from benchmark.models import EMBEDDED

PAGES = 1000


def ends_of(batch: Batch) -> np.ndarray:
    return np.array([row.start + len(row.tokens) for row in batch.rows], dtype=np.int32)


def batches(r: random.Random, page_size: int) -> list[Batch]:
    """Contexts that grow, are cut, lose some of their pages to others and are dropped."""
    tables: dict[int, Ints] = {}
    out = []
    for number in range(30):
        rows, dropped = [], [c for c in tables if r.random() < 0.1]
        for context in dropped:
            del tables[context]
        for context in r.sample(range(8), r.randint(1, 5)):
            table = tables.get(context, ints())
            kept = r.randint(0, len(table)) if r.random() < 0.3 else len(table)
            new = ints(r.randrange(PAGES) for _ in range(r.randint(0 if kept else 1, 4)))
            table = tables[context] = table[:kept] + new
            end = r.randint(1, len(table) * page_size)
            count = r.randint(1, end)
            rows.append(Row(context, end - count, ints(range(count)), new, kept))
            if page_size == 1 and len(table) > 4:
                low = r.randint(0, 3)
                gap, seen = (low, low + 1), len(table) - 1
                rows.append(Row(context, seen - 1, ints([1]), ints(), len(table), gap))
        out.append(Batch(number, rows, dropped))
    return out


@given(st.randoms(use_true_random=False), st.sampled_from([1, 4]))
def test_views_are_those_of_lists(r: random.Random, page_size: int) -> None:
    tables, lists = PageTables(PAGES, page_size), Tables(page_size)
    for batch in batches(r, page_size):
        before = encode(batch)
        offsets, pages = tables.views(batch, ends_of(batch))
        views = [pages[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        assert views == [row.pages.tolist() for row in lists.rows(batch)]
        assert encode(batch) == before
        assert len(tables) == len(lists.known)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(1, 0, ints([1]), ints([PAGES])), r"batch 2 has a page outside \[0, 1000\)"),
        (Row(1, 0, ints([1]), ints([-1])), r"batch 2 has a page outside"),
        (Row(1, 3, ints([1]), ints([7]), 4), "keeps 4 pages of context 1; 3 are known"),
        (Row(9, 1, ints([1]), ints([7]), 1), "keeps 1 pages of context 9; 0 are known"),
        (Row(1, 3, ints([1, 2]), ints([7]), 3), "too few pages for its tokens: start 3, 2 tokens"),
        (Row(1, 3, ints([1]), ints([7]), 3, (1, 2)), "too few pages for its tokens"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(row: Row, message: str) -> None:
    tables = PageTables(PAGES, 1)
    first = Batch(1, [Row(1, 0, ints([1, 2, 3]), ints([5, 6, 7]))])
    tables.views(first, ends_of(first))
    batch = Batch(2, [row])
    with pytest.raises(ValueError, match=message):
        tables.views(batch, ends_of(batch))


def generated(tokens: int, page_size: int, depth: int, fail_at: int = 0) -> tuple[Any, EngineCore]:
    """Texts of 12 requests by a real model with room for ``tokens``, "" for those that fail."""
    config = Config.of(
        model_path=str(EMBEDDED), max_total_tokens=tokens, page_size=page_size, threads=1,
        dtype="float32", max_running_requests=4, chunked_prefill_size=16,
    )  # fmt: skip
    worker, info = load_worker(config)
    runner: Any = worker.runner  # type: ignore[attr-defined]
    hidden, passes = runner.forward.hidden, 0

    def counted(*given: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == fail_at:
            raise RuntimeError("injected")
        return hidden(*given)

    runner.forward.hidden = counted
    executor: Executor = Threaded(worker) if depth == 2 else Inline(worker)
    engine = EngineCore(executor, info, config.schedule, [b"x"] * info.vocab_size)
    engine.planner.reserve = Reserve(share=0.0, low=0.0, step_up=0.0)
    r = random.Random(5)
    texts: dict[int, Any] = {}
    for number in range(12):
        prompt = ints([300 + number // 4, *(r.randrange(300, 800) for _ in range(9))])
        sampling = SamplingParams(
            max_new_tokens=20, temperature=0.0, ignore_eos=True, speculation="ngram"
        )
        goal = Generate(sampling)
        engine.handle([Open(number, prompt.tobytes()), Advance(number, number, goal, close=True)])
        texts[number] = []
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Tokens):
                texts[event.request] += event.tokens
            elif isinstance(event, Failed):
                texts[event.request] = []
    engine.close()
    engine.store.check()
    assert len(runner.reader.tables) <= len(engine.store.dropped())
    return texts, engine


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("page_size", [1, 4])
def test_retraction_and_a_failed_pass_change_no_text(page_size: int, depth: int) -> None:
    wanted, _ = generated(2000, page_size, 1)
    found, engine = generated(64, page_size, depth)
    assert engine.stats.retractions > 0
    assert found == wanted
    found, engine = generated(80, page_size, depth, fail_at=9)
    assert engine.stats.failed_passes == 1
    failed = [number for number, text in found.items() if not text]
    assert 0 < len(failed) <= 4
    assert all(found[number] == wanted[number] for number in found if number not in failed)


def test_loose_rows_leave_no_table() -> None:
    """Rows of programs bring all that they see; a replayed pass must not look for it later."""
    tables = PageTables(8, 1)
    reader = InputReader(tables, torch.device("cpu"), 100, 64)
    loose = Row(LOOSE, 2, ints([5]), ints([7, 3, 1]), positions=ints([40]))
    inputs = reader.read(Batch(1, [Row(1, 0, ints([4]), ints([0])), loose]))
    assert inputs.layout.pages.tolist() == [0, 7, 3, 1]
    assert inputs.layout.positions.tolist() == [0, 2], "slots are found by the index in the row"
    assert inputs.positions.tolist() == [0, 40]
    assert not inputs.contexts
    assert len(tables) == 1
