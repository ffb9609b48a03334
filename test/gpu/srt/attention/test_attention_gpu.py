"""Every attention implementation against the definition, in the precision of serving."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import gpu_device
from helpers.gpu_device import BACKENDS, DEVICE, DTYPE, EVERY_CASE, ON_GPU, TOLERANCE
from helpers.layouts import hold_to_the_definition
from sglang.srt.attention import reference_attention
from sglang.srt.attention.attention_protocol import Attention, Capturable, Heads, KVShape, Layout
from sglang.srt.attention.backend_choice import build

gpu_device.needs_device()

DIMS = (64, 128) if ON_GPU else (16,)
SEEDS = 12 if ON_GPU else 2 if EVERY_CASE else 1


def make(
    backend: str, keys: Any, values: Any, page_size: int, windows: Any, heads: int,
    disabled: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    shared = keys[0].data_ptr() == values[0].data_ptr()
    kv = KVShape(keys[0].shape[1], keys[0].shape[2], values[0].shape[2], shared)
    shape = SimpleNamespace(num_heads=heads, windows=windows, kv=kv, sinks=False)
    return build(backend, keys, values, page_size, shape, disabled)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    gpu_device.needs(request.param)
    return str(request.param)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_equals_the_definition(backend: str, seed: int) -> None:
    """Odd lengths, scattered pages of 1, 2 and 4, groups of 1, 3 and 4, windows, soft caps."""
    longest = 70 if ON_GPU else 9
    hold_to_the_definition(
        partial(make, backend), seed, DEVICE, DTYPE, TOLERANCE, DIMS, longest=longest
    )


@pytest.mark.parametrize("common", [128, 3])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_sinks_equal_the_definition(
    backend: str, seed: int, common: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "flashinfer":
        pytest.skip("choose refuses it for models with sinks")
    monkeypatch.setattr(
        __import__(f"sglang.srt.attention.{backend}_attention", fromlist=["COMMON"]),
        "COMMON",
        common,
    )
    hold_to_the_definition(
        partial(make, backend), 200 + seed, DEVICE, DTYPE, TOLERANCE, DIMS, sinks=True,
        longest=70 if ON_GPU else 9, kinds="decode" if common == 3 else "mixed",
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
def test_latents_equal_the_definition(seed: int) -> None:
    """Values that are a part of the keys: torch's own attention serves them on a GPU too."""
    hold_to_the_definition(
        partial(make, "native"), 300 + seed, DEVICE, DTYPE, TOLERANCE, (72,), values=(64,),
        shared=True, longest=70 if ON_GPU else 9,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
def test_equals_the_definition_where_prefixes_are_shared(
    backend: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(f"sglang.srt.attention.{backend}_attention")
    monkeypatch.setattr(module, "COMMON", 3)
    hold_to_the_definition(
        partial(make, backend), 100 + seed, DEVICE, DTYPE, TOLERANCE, DIMS, kinds="decode",
        longest=50 if ON_GPU else 9,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["append", "decode", "cascade"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_equals_the_definition_without_a_kernel(
    backend: str, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(f"sglang.srt.attention.{backend}_attention")
    monkeypatch.setattr(module, "COMMON", 3)
    for kinds in ("decode", "mixed"):
        hold_to_the_definition(
            partial(make, backend, disabled=(name,)), 400 + seed, DEVICE, DTYPE, TOLERANCE, DIMS,
            kinds=kinds, longest=50 if ON_GPU else 9,
        )  # fmt: skip


def test_a_disabled_kernel_is_not_launched(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend != "triton":
        pytest.skip("the kernels are those of sgl_kernel.triton")
    module = import_module("sglang.srt.attention.triton_attention")
    launched: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        kernel = getattr(module.kernels, name)

        def launch(*arguments: Any, **options: Any) -> Any:
            launched.append("cascade" if options.get("shared") is not None else name)
            return kernel(*arguments, **options)

        return launch

    for name in ("decode", "extend"):
        monkeypatch.setattr(module.kernels, name, noting(name))
    monkeypatch.setattr(
        module.appending, "append", lambda *a: launched.append("append") or module.stored(*a)
    )
    monkeypatch.setattr(module, "COMMON", 3)
    for disabled, want in (
        ((), {"append", "cascade"}),
        (("cascade",), {"append", "decode"}),
        (("decode", "append"), {"extend"}),
    ):
        launched.clear()
        layout, pools = decode_layout([9, 9], 8), [torch.zeros(12, 1, 16) for _ in range(2)]
        pools = [pool.to(DEVICE, DTYPE) for pool in pools]
        attention = make("triton", pools[:1], pools[1:], 1, (0,), 1, disabled)
        attention.plan(layout)
        q, k, v = (torch.randn(2, 1, 16, dtype=DTYPE, device=DEVICE) for _ in range(3))
        attention.attend(Heads(0, 1, 1, 16, 1.0), q, k, v)
        assert set(launched) == want, disabled


def decode_layout(lengths: list[int], common: int = 0) -> Layout:
    """Decode rows of so many tokens, the first ``common`` the same; pages of one token."""
    starts = np.array(lengths, dtype=np.int32) - 1
    own = np.cumsum([common, *(n - common for n in lengths)])
    tables = [[*range(common), *range(a, b)] for a, b in pairwise(own)]
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    pages = np.concatenate(tables).astype(np.int32)
    return Layout(starts, np.ones(len(lengths), dtype=np.int32), offsets, pages, starts)


def check(attention: Attention, pools: list[Any], layout: Layout, heads: Heads) -> None:
    rows = len(layout.counts)
    q, k, v = (
        torch.randn(rows, n, heads.head_dim, dtype=DTYPE, device=DEVICE)
        for n in (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
    )
    exact = [pool.double().cpu() for pool in pools]
    got = attention.attend(heads, q, k, v).double().cpu()
    q, k, v = (x.double().cpu() for x in (q, k, v))
    want = reference_attention.attend(heads, layout, q, k, v, exact[0], exact[1], page_size=1)
    error = (got - want).norm() / want.norm()
    assert error < (1e-2 if ON_GPU else 1e-5)
    torch.testing.assert_close(got, want, **TOLERANCE)


@pytest.mark.parametrize("common", [0, 200])
def test_long_rows_are_cut_and_shared(backend: str, common: int) -> None:
    """Keys enough for several parts, and a prefix that all rows share."""
    torch.manual_seed(common)
    lengths = [1500, 701, 700, 1024] if ON_GPU else [300, 201]
    layout = decode_layout(lengths, common)
    dim = DIMS[-1]
    slots = int(layout.pages.max()) + 2
    pools = [torch.randn(slots, 2, dim, dtype=DTYPE, device=DEVICE) for _ in range(2)]
    for pool in pools:
        pool[-1] = 0
    attention = make(backend, pools[:1], pools[1:], 1, (0,), 8)
    attention.plan(layout)
    check(attention, pools, layout, Heads(0, 8, 2, dim, dim**-0.5))


def test_a_frame_equals_a_plan(backend: str) -> None:
    """Static buffers: what was planned last is what is computed, for every number of rows."""
    from sglang.srt.attention.slots import padded

    torch.manual_seed(5)
    dim, slots = DIMS[0], 200
    pools = [torch.randn(slots, 2, dim, dtype=DTYPE, device=DEVICE) for _ in range(2)]
    attention = make(backend, pools[:1], pools[1:], 1, (0,), 4)
    if not isinstance(attention, Capturable):
        pytest.skip(f"{backend} attention is not captured")
    frames = {size: attention.frame(size, 300, 64) for size in (4, 2)}
    heads = Heads(0, 4, 2, dim, 0.2)
    for size, lengths in ((4, [9, 33, 2]), (2, [17]), (4, [5, 6, 7, 8]), (2, [1, 40])):
        layout = decode_layout(lengths)
        frames[size].plan(padded(layout, size, slots - 1))
        q, k, v = (torch.randn(size, n, dim, dtype=DTYPE, device=DEVICE) for n in (4, 2, 2))
        exact = [pool.double().cpu() for pool in pools]
        got = frames[size].attend(heads, q, k, v)[: len(lengths)].double().cpu()
        q, k, v = (x[: len(lengths)].double().cpu() for x in (q, k, v))
        want = reference_attention.attend(heads, layout, q, k, v, exact[0], exact[1], page_size=1)
        torch.testing.assert_close(got, want, **TOLERANCE)
        for pool, expected in zip(pools, exact):
            assert torch.equal(pool[:-1].double().cpu(), expected[:-1])
