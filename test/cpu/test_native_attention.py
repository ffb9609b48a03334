"""Native attention against the definition, over random layouts."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from srt.attention import native, reference
from srt.attention.base import Heads, Layout
from srt.attention.native import NativeAttention

DIM = 8


def random_layout(r: random.Random, page_size: int, longest: int = 20) -> tuple[Layout, int]:
    """A layout of decode rows, chunks and whole prompts on scattered pages, and the pool's size.

    Some rows begin with the pages of another one, as far as both have computed.
    """
    rows = []
    for _ in range(r.randint(1, 7)):
        kind = r.choice(["decode", "decode", "chunk", "prompt"])
        start = 0 if kind == "prompt" else r.randint(0, longest)
        rows.append((start, 1 if kind == "decode" else r.randint(1, longest)))
    needed = [-(-(start + count) // page_size) for start, count in rows]
    pages = list(range(sum(needed) + 5))
    r.shuffle(pages)
    starts, counts = (np.array(values, dtype=np.int32) for values in zip(*rows))
    tables = np.cumsum([0, *needed]).astype(np.int32)
    positions = np.concatenate([np.arange(s, s + c, dtype=np.int32) for s, c in rows])
    table = np.array(pages[: sum(needed)], dtype=np.int32)
    for row in range(1, len(rows)):
        other = r.randrange(row)
        common = min(starts[row], starts[other]) // page_size
        if r.random() < 0.6:
            table[tables[row] : tables[row] + common] = table[tables[other] :][:common]
    return Layout(starts, counts, tables, table, positions), len(pages)


def compare(seed: int) -> None:
    r = random.Random(seed)
    torch.manual_seed(seed)
    page_size, kv_heads, group = r.choice([1, 2, 4]), r.choice([1, 2]), r.choice([1, 3])
    windows = sorted({0, r.randint(1, 12)})
    layout, pages = random_layout(r, page_size)
    slots = pages * page_size + 1
    pools = [torch.randn(slots, kv_heads, DIM) for _ in range(4)]
    for pool in pools:
        pool[-1] = 0
    expected_pools = [pool.clone() for pool in pools]
    attention = NativeAttention(pools[:2], pools[2:], page_size, windows)
    attention.plan(layout)
    for index, window in enumerate(windows):
        cap = r.choice([0.0, 0.0, 1.5])
        heads = Heads(index, kv_heads * group, kv_heads, DIM, r.uniform(0.1, 1.0), window, cap)
        total = int(layout.counts.sum())
        q = torch.randn(total, kv_heads * group, DIM)
        k, v = torch.randn(total, kv_heads, DIM), torch.randn(total, kv_heads, DIM)
        got = attention.attend(heads, q, k, v)
        keys, values = expected_pools[index], expected_pools[2 + index]
        want = reference.attend(heads, layout, q, k, v, keys, values, page_size)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=2e-6)
    for pool, expected in zip(pools, expected_pools):
        assert torch.equal(pool, expected), "something else than the new tokens was written"


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_definition(seed: int) -> None:
    compare(seed)


@pytest.mark.parametrize("seed", range(100, 140))
def test_equals_the_definition_where_prefixes_are_shared(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit so low that few common keys are read once for all rows."""
    monkeypatch.setattr(native, "COMMON", 2)
    compare(seed)


def test_a_shared_prefix_is_read_once() -> None:
    """64 rows over one prefix of 1000 tokens: one block, and each row's own keys beside it."""
    starts = np.full(64, 1000, dtype=np.int32)
    own = np.arange(64, dtype=np.int32)[:, None] + 1000
    pages = np.concatenate([np.broadcast_to(np.arange(1000), (64, 1000)), own], axis=1)
    tables = np.arange(65, dtype=np.int32) * 1001
    layout = Layout(
        starts, np.ones(64, dtype=np.int32), tables, pages.astype(np.int32).ravel(), starts
    )
    pool = torch.zeros(1065, 1, DIM)
    attention = NativeAttention([pool], [pool.clone()], 1)
    attention.plan(layout)
    (block,) = attention.blocks[0]
    assert block.shared is not None
    assert block.shared.tolist() == list(range(1000))
    assert block.slots.tolist() == list(range(1000, 1064))


@pytest.mark.parametrize("seed", range(40, 50))
def test_equals_the_definition_however_rows_are_grouped(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits so low that rows are computed alone, and blocks are cut."""
    monkeypatch.setattr(native, "ALONE", 60)
    monkeypatch.setattr(native, "PAIRS", 100)
    compare(seed)


def test_blocks_do_not_grow_with_decode_rows() -> None:
    """64 decode rows of lengths 1 to 4096 need as many blocks as there are powers of four."""
    lengths = np.array([1 + (i * 4095) // 63 for i in range(64)], dtype=np.int32)
    ones = np.ones(64, dtype=np.int32)
    tables = np.cumsum([0, *lengths]).astype(np.int32)
    layout = Layout(lengths - 1, ones, tables, np.arange(tables[-1], dtype=np.int32), lengths - 1)
    pool = torch.zeros(2, 1, DIM)
    attention = NativeAttention([pool], [pool.clone()], 1)
    attention.plan(layout)
    assert len(attention.blocks[0]) <= 1 + math.log(4096 / 256, 4)
    assert sum(block.rows for block in attention.blocks[0]) == 64
    padded = sum(block.slots.numel() for block in attention.blocks[0])
    assert padded < 4 * lengths.sum() + 64 * 256


def test_a_window_gathers_only_what_it_sees() -> None:
    layout = Layout(
        np.array([999], dtype=np.int32), np.array([1], dtype=np.int32),
        np.array([0, 1000], dtype=np.int32), np.arange(1000, dtype=np.int32),
        np.array([999], dtype=np.int32),
    )  # fmt: skip
    pool = torch.zeros(1001, 1, DIM)
    attention = NativeAttention([pool], [pool.clone()], 1, windows=(16,))
    attention.plan(layout)
    (block,) = attention.blocks[16]
    assert block.slots.tolist() == list(range(984, 1000))
