"""The FlashInfer backend over a stand-in that computes attention by its definition."""

from __future__ import annotations

import importlib.util
import inspect
import random
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import fake_flashinfer
from helpers.layouts import hold_to_the_definition, random_layout
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.attention import flashinfer_attention, reference_attention
from sglang.srt.attention.attention_protocol import Capturable, Heads, Layout
from sglang.srt.attention.flashinfer_attention import FlashInferAttention, workspace_bytes
from sglang.srt.attention.native_attention import NativeAttention
from sglang.srt.attention.slots import padded

CPU = torch.device("cpu")
EXACT: dict[str, Any] = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(flashinfer_attention, "SCHEDULE", 1 << 10)
    fake_flashinfer.calls.clear()


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_definition(seed: int) -> None:
    hold_to_the_definition(FlashInferAttention, seed, CPU, torch.float32, EXACT)


@pytest.mark.parametrize("seed", range(5))
def test_prompts_by_flash_attention_3_equal_the_definition(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flashinfer_attention, "COMMON", 2)
    build = partial(FlashInferAttention, fa3=True)
    hold_to_the_definition(build, seed, CPU, torch.float32, EXACT)
    assert "prefill-fa3" in fake_flashinfer.calls
    assert "prefill" not in fake_flashinfer.calls
    fake_flashinfer.calls.clear()
    hold_to_the_definition(build, 100 + seed, CPU, torch.float32, EXACT, kinds="decode")
    assert "level" in fake_flashinfer.calls
    assert "prefill-fa3" not in fake_flashinfer.calls, "shared keys are read by the older kernels"


@pytest.mark.parametrize("seed", range(100, 120))
def test_equals_the_definition_where_prefixes_are_shared(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flashinfer_attention, "COMMON", 2)
    hold_to_the_definition(FlashInferAttention, seed, CPU, torch.float32, EXACT, kinds="decode")


def test_shared_keys_are_read_once_a_group() -> None:
    """Two families of rows and a row of its own, in turns; in pages of 4."""
    starts = np.array([9, 14, 9, 13, 2, 10], dtype=np.int32)
    a, b = [0, 1], [10, 11, 12]
    tables = [[*a, 2], [*b, 13], [*a, 3], [*b, 14], [20], [*a, 4]]
    offsets = np.cumsum([0, *map(len, tables)]).astype(np.int32)
    layout = Layout(
        starts, np.ones(6, dtype=np.int32), offsets,
        np.concatenate(tables).astype(np.int32), starts,
    )  # fmt: skip
    torch.manual_seed(0)
    pools = [torch.randn(21 * 4 + 1, 2, 16) for _ in range(2)]
    exact = [pool.double() for pool in pools]
    attention = FlashInferAttention(pools[:1], pools[1:], 4, (0,), 2)
    q, k, v = (torch.randn(6, 2, 16) for _ in range(3))
    attention.plan(layout)
    assert attention.current.levels is None, "too few keys are shared"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flashinfer_attention, "COMMON", 4)
        attention.plan(layout)
    levels = attention.current.levels
    assert levels is not None
    assert levels.order.tolist() == [0, 2, 5, 1, 3, 4]
    assert levels.queries.tolist() == [0, 3, 5]
    assert levels.shared[1].tolist() == [*a, *b]
    assert levels.own[1].tolist() == [2, 3, 4, 13, 14, 20]
    heads = Heads(0, 2, 2, 16, 0.25)
    got = attention.attend(heads, q, k, v)
    assert fake_flashinfer.calls == ["decode", "level", "merge"]
    want = reference_attention.attend(heads, layout, q, k, v, *exact, page_size=4)
    torch.testing.assert_close(got.double(), want, **EXACT)


@pytest.mark.parametrize("seed", range(10))
def test_a_frame_computes_what_was_planned_last(seed: int) -> None:
    """Padded decode passes on static buffers, larger and smaller frames in turns."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    page_size, dim, windows = r.choice([1, 2, 4]), 16, (0, 5)
    layouts = [random_layout(r, page_size, kinds="decode") for _ in range(3)]
    pages = max(count for _, count in layouts)
    pools = [torch.randn(pages * page_size + 1, 1, dim) for _ in range(4)]
    exact = [pool.double() for pool in pools]
    attention = FlashInferAttention(pools[:2], pools[2:], page_size, windows, 4)
    assert isinstance(attention, Capturable)
    assert not isinstance(NativeAttention(pools[:2], pools[2:], page_size), Capturable)
    frames = {rows: attention.frame(rows, 400, 64) for rows in (16, 8)}
    for _ in range(2):
        for layout, _ in layouts:
            rows, size = len(layout.counts), r.choice([8, 16])
            frames[size].plan(padded(layout, size, pages))
            for index, window in enumerate(windows):
                heads = Heads(index, 4, 1, dim, 0.3, window)
                q, k, v = (torch.randn(size, n, dim) for n in (4, 1, 1))
                got = frames[size].attend(heads, q, k, v)[:rows]
                q, k, v = (x[:rows].double() for x in (q, k, v))
                want = reference_attention.attend(
                    heads, layout, q, k, v, exact[index], exact[2 + index], page_size
                )
                torch.testing.assert_close(got.double(), want, **EXACT)
    assert set(fake_flashinfer.calls) == {"captured"}
    for pool, expected in zip(pools, exact):
        assert torch.equal(pool[:-1].double(), expected[:-1]), "padding wrote into a page"


def test_tables_longer_than_a_row_needs_are_cut() -> None:
    """FlashInfer takes a row's length from the number of its pages."""
    layout = Layout(
        np.array([2, 0], np.int32), np.array([1, 3], np.int32), np.array([0, 4, 6], np.int32),
        np.array([5, 1, 7, 8, 3, 9], np.int32), np.array([2, 0, 1, 2], np.int32),
    )  # fmt: skip
    pools = [torch.randn(21, 1, 16) for _ in range(2)]
    attention = FlashInferAttention(pools[:1], pools[1:], 2, (0,), 1)
    attention.plan(layout)
    assert attention.current.offsets.tolist() == [0, 2, 4]
    assert attention.current.pages.tolist() == [5, 1, 3, 9]
    assert attention.current.last.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("heads", "rows", "mebibytes"),
    [((64, 8, 128), 256, 192), ((64, 8, 128), 512, 386), ((96, 8, 128), 256, 337),
     ((32, 8, 128), 256, 80), ((71, 1, 64), 256, 894), ((16, 1, 128), 0, 266)],
)  # fmt: skip
def test_workspace_grows_with_heads_and_captured_rows(
    heads: tuple[int, int, int], rows: int, mebibytes: int
) -> None:
    """The GPU has 132 multiprocessors. 256 MiB, as FlashInfer advises, is too little for some."""
    assert workspace_bytes(*heads, rows, 132) >> 20 == mebibytes


@given(
    kv_heads=st.sampled_from([1, 2, 4, 8, 32]), group=st.integers(1, 80),
    dim=st.sampled_from([64, 128, 256]), page_size=st.sampled_from([1, 4, 16]),
    counts=st.lists(st.integers(1, 700), min_size=1, max_size=40),
    captured=st.booleans(), window=st.sampled_from([-1, 63, 1023]), data=st.data(),
)  # fmt: skip
def test_workspace_holds_every_plan(
    kv_heads: int, group: int, dim: int, page_size: int, counts: list[int], captured: bool,
    window: int, data: st.DataObject,
) -> None:  # fmt: skip
    counts = [1] * len(counts) if captured else counts
    most = len(counts) + data.draw(st.integers(0, 5), label="rows of the largest pass")
    pages = [-(-(n + data.draw(st.integers(0, 20_000))) // page_size) for n in counts]
    heads = (kv_heads * group, kv_heads, dim)
    need = fake_flashinfer.parts_bytes(*heads, page_size, counts, pages, captured, window, 132)
    assert need <= workspace_bytes(*heads, most if captured else 0, 132)


def test_the_stand_in_notices_a_small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [torch.zeros(9, 1, 16) for _ in range(2)]
    monkeypatch.setattr(flashinfer_attention, "workspace_bytes", lambda *_: 1 << 10)
    attention = FlashInferAttention(pools[:1], pools[1:], 1, (0,), 4)
    frame = attention.frame(4, 8, 8)
    one = np.ones(4, np.int32)
    tables = np.arange(5, dtype=np.int32)
    frame.plan(Layout(0 * one, one, tables, tables[:4], 0 * one))
    q, k = torch.zeros(4, 4, 16), torch.zeros(4, 1, 16)
    with pytest.raises(AssertionError, match="Buffer overflow"):
        frame.attend(Heads(0, 4, 1, 16, 1.0), q, k, k)


NAMES = (
    "BatchDecodeWithPagedKVCacheWrapper.__init__", "BatchDecodeWithPagedKVCacheWrapper.plan",
    "BatchDecodeWithPagedKVCacheWrapper.run", "BatchPrefillWithPagedKVCacheWrapper.__init__",
    "BatchPrefillWithPagedKVCacheWrapper.plan", "BatchPrefillWithPagedKVCacheWrapper.run",
    "BatchPrefillWithPagedKVCacheWrapper.reset_workspace_buffer", "merge_state_in_place",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_stand_in_has_the_package_s_signatures(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "flashinfer")
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("flashinfer is not installed")
    real: Any = importlib.import_module("flashinfer")
    fake: Any = fake_flashinfer
    for part in name.split("."):
        real, fake = getattr(real, part), getattr(fake, part)
    theirs, ours = (inspect.signature(x).parameters for x in (real, fake))
    positional = [p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(theirs)[: len(positional)] == positional or name.endswith("workspace_buffer")
    assert set(ours) <= set(theirs) or name.endswith("workspace_buffer")
