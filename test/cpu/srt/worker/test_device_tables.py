"""Page tables on the device: against the views of every pass, and the bytes that a step sends."""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.attention.attention_protocol import Layout
from sglang.srt.core.batch import Batch, Row
from sglang.srt.core.ints import Ints, ints
from sglang.srt.parallel import staging
from sglang.srt.worker.device_tables import DeviceTables
from sglang.srt.worker.graphs import Graphs
from sglang.srt.worker.inputs import InputReader, Inputs
from sglang.srt.worker.page_tables import PageTables

PAGES, PADDING = 1000, 1000


def histories(r: random.Random, page_size: int) -> list[Batch]:
    """Contexts that grow, are cut and take other pages, are dropped and come again."""
    tables: dict[int, Ints] = {}
    out = []
    for number in range(40):
        dropped = [c for c in tables if r.random() < 0.1]
        for context in dropped:
            del tables[context]
        rows = []
        for context in r.sample(range(8), r.randint(1, 5)):
            table = tables.get(context, ints())
            kept = r.randint(0, len(table)) if r.random() < 0.3 else len(table)
            most = 100 if r.random() < 0.1 else 4
            new = ints(r.randrange(PAGES) for _ in range(r.randint(0 if kept else 1, most)))
            tables[context] = table[:kept] + new
            end = r.randint(1, len(tables[context]) * page_size)
            rows.append(Row(context, end - 1, ints([0]), new, kept))
        out.append(Batch(number, rows, dropped))
    return out


@given(st.integers(0, 1 << 32), st.sampled_from([1, 4]), st.sampled_from([150, 400, 10_000]))
def test_the_array_holds_what_rows_see(seed: int, page_size: int, size: int) -> None:
    """Some passes are not placed (eager ones), and some overwrite the array."""
    r = random.Random(seed)
    entries = torch.full((size,), -1, dtype=torch.int32)
    tables, device = PageTables(PAGES, page_size), DeviceTables(entries, PADDING)
    tables.on_device = device
    for batch in histories(r, page_size):
        ends = np.array([row.start + 1 for row in batch.rows], dtype=np.int32)
        offsets, pages = tables.views(batch, ends)
        what = r.random()
        if what < 0.2:
            continue
        if what < 0.3:
            entries.fill_(-1)
            device.clear()
            continue
        firsts = device.place([row.context for row in batch.rows], offsets, pages)
        if firsts is None:
            assert len(pages) * 9 // 8 + 64 * len(batch.rows) >= size - 1
            continue
        assert int(entries[0]) == PADDING
        for first, low, high in zip(firsts.tolist(), offsets[:-1], offsets[1:]):
            assert entries[first : first + high - low].tolist() == pages[low:high].tolist()


def decode_step(step: int, rows: int, length: int) -> Batch:
    """Rows of one new token each, in pages of one token: at first with their whole tables."""
    made = []
    for context in range(rows):
        new, kept = ints([context]) * (1 if step else length), length + step - 1 if step else 0
        made.append(Row(context, length + step - 1, ints([0]), new, kept))
    return Batch(step, made)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every array that is sent to the device."""
    sizes: list[int] = []

    def counted(array: Any, device: torch.device) -> torch.Tensor:
        sizes.append(array.nbytes)
        return torch.from_numpy(np.ascontiguousarray(array))

    def counted_into(array: Any, target: torch.Tensor) -> None:
        sizes.append(array.nbytes)
        target[: len(array)].copy_(torch.from_numpy(np.ascontiguousarray(array)))

    monkeypatch.setattr(staging, "send", counted)
    if find_spec("triton") is not None:
        from sglang.srt.attention import triton_attention

        monkeypatch.setattr(triton_attention, "send_into", counted_into)
    return sizes


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_a_replayed_step_sends_what_is_new(sent: list[int]) -> None:
    """64 rows of 32 k tokens, in pages of one: 8 MB of tables once, then a few KB a step."""
    from sglang.srt.attention.triton_attention import TritonAttention

    rows, length, pool = 64, 32_768, 4000
    pools = [torch.zeros(1, 8, 16) for _ in range(2)]
    attention = TritonAttention(pools[:1], pools[1:], 1, (0,), 32)
    attention.processors = 132
    frame: Any = attention.frame(rows + 8, 1 << 22, 1 << 17)
    graphs = Graphs.__new__(Graphs)
    graphs.padding, graphs.resident = pool, DeviceTables(frame.entries, pool)
    tables, totals = PageTables(pool, 1), []
    for step in range(4):
        batch = decode_step(step, rows, length)
        ends = np.array([row.start + 1 for row in batch.rows], dtype=np.int32)
        offsets, pages = tables.views(batch, ends)
        layout = Layout(ends - 1, np.ones_like(ends), offsets, pages, ends - 1)
        contexts = [row.context for row in batch.rows]
        none = torch.zeros(0)
        sent.clear()
        graphs._plan(frame, rows + 8, Inputs(none, none, ends, layout, tables, contexts))
        totals.append(sum(sent))
        seen = frame.entries[frame.tables.long()].tolist()
        assert seen == [*range(rows), *[pool] * 8]
        assert frame.slots.tolist() == seen
        assert frame.lengths.tolist() == [length + step] * rows + [1] * 8
    assert totals[0] > 8 << 20
    assert max(totals[1:]) < 5 << 10


@pytest.mark.parametrize(
    ("rows", "contexts"),
    [
        ([Row(3, 0, ints([1]), ints([5])), Row(4, 0, ints([1]), ints([6]))], [3, 4]),
        ([Row(3, 0, ints([1]), ints([5])), Row(3, 0, ints([1]), ints([6]))], []),
        ([Row(3, 1, ints([1]), ints([5, 6, 7]), gap=(0, 1))], []),
    ],
)
def test_tables_of_two_rows_or_with_a_gap_are_sent_whole(
    rows: list[Row], contexts: list[int]
) -> None:
    tables = PageTables(PAGES, 1)
    inputs = InputReader(tables, torch.device("cpu"), 10, 100).read(Batch(0, rows))
    assert inputs.contexts == contexts
