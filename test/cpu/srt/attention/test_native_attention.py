"""Native attention against the definition, over random layouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.layouts import hold_to_the_definition
from sglang.srt.attention import native_attention
from sglang.srt.attention.attention_protocol import Layout
from sglang.srt.attention.native_attention import NativeAttention

DIM = 8


# Layers as most models have them, with sinks, with values of another width, and with values that
# are a part of the keys.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sinks": {"sinks": True},
    "values": {"values": (4, 12)},
    "shared": {"values": (5, 6), "shared": True, "sinks": True},
}


def compare(seed: int) -> None:
    def build(keys: Any, values: Any, page_size: int, windows: Any, heads: int) -> NativeAttention:
        return NativeAttention(keys, values, page_size, windows)

    kind = list(KINDS.values())[seed % 4]
    hold_to_the_definition(
        build, seed, torch.device("cpu"), torch.float32, {"rtol": 1e-5, "atol": 2e-6}, (DIM,),
        **kind,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_definition(seed: int) -> None:
    compare(seed)


@pytest.mark.parametrize("seed", range(100, 140))
def test_equals_the_definition_where_prefixes_are_shared(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit so low that few common keys are read once for all rows."""
    monkeypatch.setattr(native_attention, "COMMON", 2)
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
    monkeypatch.setattr(native_attention, "ALONE", 60)
    monkeypatch.setattr(native_attention, "PAIRS", 100)
    monkeypatch.setattr(native_attention, "SCORES", 50)
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
