"""Kernels: attention of one layer, ours beside FlashInfer and plain torch.

bound     bytes of the keys and values (shared ones once) over the copy rate, or operations
          over the rate of products, whichever is longer
error     norm of the difference to float32 torch over the norm of that
dense     torch's own attention over keys that lie together: no pages, so not an alternative,
          but what a library does without them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sglang.srt.attention.attention_protocol import Attention, Heads, KVShape, Layout
from sglang.srt.attention.backend_choice import build, choose
from torch import Tensor

from benchmark.gpu.bench import Bench

BACKENDS = ("triton", "flashinfer", "native")


@dataclass(frozen=True)
class Case:
    """``rows`` rows of ``count`` new tokens behind ``start``, of which ``common`` are shared."""

    name: str
    rows: int
    start: int
    count: int = 1
    common: int = 0


CASES = (
    Case("decode 1 x 1k", 1, 1023),
    Case("decode 32 x 1k", 32, 1023),
    Case("decode 256 x 1k", 256, 1023),
    Case("decode 16 x 16k", 16, 16383),
    Case("decode 64 x 1k + 64", 64, 1087, common=1024),
    Case("extend 1 x 4k", 1, 0, 4096),
    Case("extend 8 x 512 on 2k", 8, 2048, 512),
)
TINY = (
    Case("decode 3 x 12", 3, 11), Case("decode 4 x 16 + 4", 4, 20, common=16),
    Case("extend 2 x 5 on 3", 2, 3, 5),
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int, ...] = (0,)
    sinks: bool = False

    @property
    def kv(self) -> KVShape:
        return KVShape(self.num_kv_heads, self.head_dim, self.head_dim)


def kernels(bench: Bench) -> None:
    table = bench.table("kernels")
    shape = Shape(4, 2, 16) if bench.tiny else Shape(32, 8, 128)
    backends = []
    for name in BACKENDS:
        try:
            choose(name, bench.device, shape, bench.dtype)
            backends.append(name)
        except ValueError as error:
            table.remarks.append(str(error))
    for case in TINY if bench.tiny else CASES:
        if bench.left < 5:
            table.remarks.append(f"left out for time: {case.name} and what follows")
            return
        table.rows.append(_case(bench, shape, case, backends, table.remarks))
        print(table.rows[-1], flush=True)


def _case(
    bench: Bench, shape: Shape, case: Case, backends: list[str], remarks: list[str]
) -> dict[str, Any]:
    layout = _layout(case)
    tokens, dim = case.rows * case.count, shape.head_dim
    heads = Heads(0, shape.num_heads, shape.num_kv_heads, dim, dim**-0.5)
    slots = int(layout.pages.max()) + 2

    def random(*size: int) -> Tensor:
        return torch.randn(*size, device=bench.device, dtype=torch.float32).to(bench.dtype)

    pools = [random(slots, shape.num_kv_heads, dim) for _ in range(2)]
    kv_heads = heads.num_kv_heads
    q, k, v = (random(tokens, n, dim) for n in (heads.num_heads, kv_heads, kv_heads))
    bound = _bound(bench, shape, case)
    row: dict[str, Any] = {"case": case.name, "bound us": bound * 1e6}
    want = None
    for name in backends:
        if name == "native" and case.rows * (case.start + case.count) > 1 << 19:
            continue  # gathers its keys: gigabytes
        try:
            attention = build(name, pools[:1], pools[1:], 1, shape)
            seconds, plan, got = _measure(bench, attention, layout, heads, (q, k, v))
        except Exception as error:  # one backend that breaks is a result, not the end
            remarks.append(f"{case.name}, {name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if want is None:
            want = _definition(layout, heads, q, pools)
        row |= {
            f"{name} us": seconds * 1e6,
            f"{name} of bound": f"{bound / seconds:.0%}",
            f"{name} plan us": plan * 1e6,
            f"{name} error": float((got.float() - want).norm() / want.norm()),
        }
    row["dense us"] = bench.seconds(_dense(layout, heads, q, pools)) * 1e6
    return row


def _measure(
    bench: Bench, attention: Attention, layout: Layout, heads: Heads, qkv: tuple[Tensor, ...]
) -> tuple[float, float, Tensor]:
    """Seconds of a layer, seconds of a plan (once a pass, on the host), and the outputs."""
    attention.plan(layout)
    got = attention.attend(heads, *qkv).clone()
    seconds = bench.seconds(lambda: attention.attend(heads, *qkv))
    plan = bench.seconds(lambda: attention.plan(layout), rounds=5)
    return seconds, plan, got


def _layout(case: Case) -> Layout:
    """Pages of one token, scattered as a pool that has been in use for long."""
    length = case.start + case.count
    own = length - case.common
    pages = np.random.default_rng(0).permutation(case.common + case.rows * own).astype(np.int32)
    shared = np.broadcast_to(pages[: case.common], (case.rows, case.common))
    tables = np.concatenate([shared, pages[case.common :].reshape(case.rows, own)], 1)
    starts = np.full(case.rows, case.start, dtype=np.int32)
    counts = np.full(case.rows, case.count, dtype=np.int32)
    positions = np.tile(np.arange(case.start, length, dtype=np.int32), case.rows)
    offsets = np.arange(case.rows + 1, dtype=np.int32) * np.int32(length)
    return Layout(starts, counts, offsets, np.ascontiguousarray(tables.ravel()), positions)


def _bound(bench: Bench, shape: Shape, case: Case) -> float:
    keys = case.common + case.rows * (case.start + case.count - case.common)
    size = 2 * keys * shape.num_kv_heads * shape.head_dim * bench.dtype.itemsize
    # A new token sees those before it: half of the new ones on average.
    pairs = case.rows * case.count * (case.start + (case.count + 1) / 2)
    operations = 4 * pairs * shape.num_heads * shape.head_dim
    return max(size / bench.copy, operations / bench.product)


def _gathered(layout: Layout, pools: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Keys and values side by side [rows, kv_heads, length, head_dim]."""
    at = torch.from_numpy(layout.pages.astype(np.int64)).to(pools[0].device)
    rows = len(layout.counts)
    keys, values = (pool[at].unflatten(0, (rows, -1)).transpose(1, 2) for pool in pools)
    return keys, values


def _dense(layout: Layout, heads: Heads, q: Tensor, pools: list[Tensor]) -> Any:
    keys, values = (x.contiguous() for x in _gathered(layout, pools))
    queries = q.unflatten(0, (len(layout.counts), -1)).transpose(1, 2).contiguous()
    start, length = int(layout.starts[0]), keys.shape[2]
    mask = None
    if start and queries.shape[2] > 1:
        place = torch.arange(start, length, device=q.device).unsqueeze(1)
        mask = torch.arange(length, device=q.device) <= place
    causal = mask is None and queries.shape[2] > 1
    return lambda: F.scaled_dot_product_attention(
        queries, keys, values, mask, is_causal=causal, scale=heads.scale, enable_gqa=True
    )


def _definition(layout: Layout, heads: Heads, q: Tensor, pools: list[Tensor]) -> Tensor:
    """Attention by its definition, in float32, a row at a time, from the pools after the new keys
    were written."""
    keys, values = _gathered(layout, pools)
    group, out = heads.num_heads // heads.num_kv_heads, []
    for r, queries in enumerate(q.unflatten(0, (len(layout.counts), -1))):
        start = int(layout.starts[r])
        for head in range(heads.num_heads):
            scores = queries[:, head].float() @ keys[r, head // group].float().T * heads.scale
            place = torch.arange(start, start + len(queries), device=q.device).unsqueeze(1)
            hidden = torch.arange(scores.shape[1], device=q.device) > place
            weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
            out.append(weights @ values[r, head // group].float())
    shape = (len(layout.counts), heads.num_heads, -1, heads.head_dim)
    return torch.stack(out).view(*shape).transpose(1, 2).reshape(len(q), -1)
