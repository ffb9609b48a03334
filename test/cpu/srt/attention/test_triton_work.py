"""Work of the Triton backend's decode programs: equal shares of the keys, whatever the rows'
lengths."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs triton, which has no build for this system", allow_module_level=True)

from sglang.srt.attention.attention_protocol import Int32Array, Layout
from sglang.srt.attention.triton_attention import TritonAttention

KV_HEADS, PROGRAMS = 8, 33
SKEWED = [100_000] + [1000] * 40


def attention() -> TritonAttention:
    """A backend for an H100: 132 multiprocessors."""
    pools = [torch.zeros(1, KV_HEADS, 16) for _ in range(2)]
    made = TritonAttention(pools[:1], pools[1:], 16, (0,), 4 * KV_HEADS)
    made.processors = 132
    return made


def decode_layout(lengths: list[int], common: int = 0, prompt: int = 0) -> Layout:
    """Decode rows of so many tokens in pages of 16, the first ``common`` the same; behind them a
    row of ``prompt`` new tokens."""
    ends = np.array(lengths + [prompt] * bool(prompt), dtype=np.int32)
    counts = np.array([1] * len(lengths) + [prompt] * bool(prompt), dtype=np.int32)
    used = -(-ends // 16)
    tables = np.concatenate([[0], np.cumsum(used)]).astype(np.int32)
    pages = np.arange(tables[-1], dtype=np.int32)
    for row in range(1, len(lengths)):
        pages[tables[row] : tables[row] + common // 16] = pages[: common // 16]
    starts = ends - counts
    positions = np.concatenate([np.arange(s, e) for s, e in zip(starts, ends)]).astype(np.int32)
    return Layout(starts, counts, tables, pages, positions)


def read(items: torch.Tensor) -> Int32Array:
    """Keys that each program reads."""
    return (items[:, 2] - items[:, 1]).numpy()


@pytest.mark.parametrize("lengths", [SKEWED, [100_000], [5000] * 64, [1] * 300, [700, 3, 40_000]])
def test_no_program_reads_more_than_its_share(lengths: list[int]) -> None:
    made = attention()
    made.plan(decode_layout(lengths))
    assert made.decode is not None
    keys, total = read(made.decode.work.items), sum(lengths)
    assert keys.sum() == total
    share = -(-total // PROGRAMS)
    assert keys.max() <= max(256, share + 63)
    assert len(keys) <= len(lengths) + PROGRAMS


def test_short_rows_are_not_cut() -> None:
    made = attention()
    made.plan(decode_layout([1000] * 256))
    assert made.decode is not None
    assert (len(made.decode.work.items), made.decode.work.parts) == (256, 0)


def test_rows_beside_a_prompt_share_their_work() -> None:
    made = attention()
    made.plan(decode_layout(SKEWED, prompt=500))
    assert made.decode is not None
    assert read(made.decode.work.items).max() <= sum(SKEWED) / PROGRAMS + 64


def test_a_shared_prefix_is_no_row_s_work() -> None:
    made = attention()
    made.plan(decode_layout(SKEWED, common=512))
    assert made.decode is not None
    assert made.decode.own is not None
    work, shared = made.decode.own
    own = sum(n - 512 for n in SKEWED)
    assert shared.lengths.tolist() == [512]
    assert read(work.items).sum() == own
    assert read(work.items).max() <= own / PROGRAMS + 64


def test_a_captured_pass_is_planned_in_place() -> None:
    """Work of any lengths fits the buffers and the grid of the capture."""
    made = attention()
    frame: Any = made.frame(41, 20_000, 131_072)
    address, shape = frame.work.items.data_ptr(), frame.work.items.shape
    for lengths in (SKEWED, [7] * 41, SKEWED[::-1], [30_000] + [5] * 40):
        frame.plan(decode_layout(lengths))
        assert (frame.work.items.data_ptr(), frame.work.items.shape) == (address, shape)
        keys = read(frame.work.items)
        assert keys.sum() == sum(lengths)
        assert keys.max() <= max(256, sum(lengths) / PROGRAMS + 64)
        assert int(frame.work.firsts[-1]) <= frame.work.parts
