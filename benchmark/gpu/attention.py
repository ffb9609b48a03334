"""Times of one attention layer: our kernels, FlashInfer and plain torch; and of plans on the host.

bound     the longer of two times: bytes of the keys and values (shared ones once) divided by the
          copy rate, and operations divided by the rate of matrix products
error     norm of the difference to torch in float32, divided by the norm of torch's result
dense     torch's own attention over contiguous keys, without pages: no alternative, but what a
          library does without paging

Layers take turns, as in a model, so that keys and values do not stay in the GPU's cache. Decode
without a shared prefix is computed as in a CUDA graph (``Capturable.frame``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sglang.srt.attention.attention_protocol import Attention, Capturable, Heads, KVShape, Layout
from sglang.srt.attention.backend_choice import build, choose
from torch import Tensor

from benchmark.gpu.bench import Bench, share
from benchmark.gpu.timing import copies, timed

BACKENDS = ("triton", "flashinfer", "native")
# Tokens that plain torch's gathered keys may have.
GATHERED = 1 << 19
# Layers and gathered keys together stay within this.
MEMORY = 8 << 30


@dataclass(frozen=True)
class Case:
    """Rows of new tokens after cached ones.

    Attributes:
        rows: (cached tokens, new tokens) of each.
        common: cached tokens that all rows share.
        float8: whether keys and values are float8 e4m3.
    """

    name: str
    rows: tuple[tuple[int, int], ...]
    common: int = 0
    float8: bool = False

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.rows)

    @property
    def keys(self) -> int:
        """Tokens in the pool."""
        return self.common + sum(start + count - self.common for start, count in self.rows)

    @property
    def even(self) -> bool:
        return len(set(self.rows)) == 1

    @property
    def decodes(self) -> bool:
        return all(count == 1 for _, count in self.rows)


def decode(name: str, rows: int, length: int, **options: Any) -> Case:
    return Case(f"decode {name}", ((length - 1, 1),) * rows, **options)


SKEWED = ((99_999, 1), *((1023, 1),) * 39)
MIXED = (*((1023, 1),) * 63, (0, 512))
LADDER = tuple((128 * 2 ** (i % 7) - 1, 1) for i in range(63))
CASES = (
    decode("1 x 1k", 1, 1024),
    decode("32 x 1k", 32, 1024),
    decode("256 x 1k", 256, 1024),
    decode("1 x 32k", 1, 32768),
    decode("1 x 128k", 1, 131072),
    decode("16 x 16k", 16, 16384),
    Case("decode 63 x 128 to 8k", LADDER),
    Case("decode 1 x 100k + 39 x 1k", SKEWED),
    decode("64 x 1k shared + 64", 64, 1088, common=1024),
    decode("32 x 1k fp8", 32, 1024, float8=True),
    decode("256 x 1k fp8", 256, 1024, float8=True),
    Case("extend 1 x 4k", ((0, 4096),)),
    Case("extend 8 x 512 on 2k", ((2048, 512),) * 8),
    Case("extend 1 x 2k on 64k", ((65536, 2048),)),
    Case("mixed 63 x 1k + 512", MIXED),
    Case("extend 1 x 4k fp8", ((0, 4096),), float8=True),
)
TINY = (
    decode("3 x 12", 3, 12), decode("4 x 16 shared + 4", 4, 20, common=16),
    Case("decode 9 + 2 x 3", ((8, 1), (2, 1), (2, 1))), decode("2 x 5 fp8", 2, 5, float8=True),
    Case("extend 2 x 5 on 3", ((3, 5),) * 2), Case("mixed 2 x 4 + 3", ((3, 1), (3, 1), (0, 3))),
)  # fmt: skip


@dataclass(frozen=True)
class HeadsShape:
    """The part of a model's spec that attention needs."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int, ...] = (0,)
    sinks: bool = False

    @property
    def kv(self) -> KVShape:
        return KVShape(self.num_kv_heads, self.head_dim, self.head_dim)


def attention(bench: Bench) -> None:
    shape = HeadsShape(4, 2, 16) if bench.tiny else HeadsShape(32, 8, 128)
    for case in TINY if bench.tiny else CASES:
        if not bench.enough(6, f"{case.name} and what follows"):
            return
        if not bench.first(case.name):
            continue
        try:
            _case(bench, shape, case)
        except (RuntimeError, MemoryError) as error:
            bench.failed(case.name, error)
        if bench.on_gpu:
            torch.cuda.empty_cache()


def _case(bench: Bench, shape: HeadsShape, case: Case) -> None:
    layout, dtype = layout_of(case), torch.float8_e4m3fn if case.float8 else bench.dtype
    slots = int(layout.pages.max()) + 2
    size = 2 * slots * shape.num_kv_heads * shape.head_dim * dtype.itemsize
    layers = 1 if bench.tiny else copies(size, MEMORY)
    shape = replace(shape, windows=(0,) * layers)
    dims = (slots, shape.num_kv_heads, shape.head_dim)
    pools = [[bench.random(*dims).to(dtype) for _ in range(layers)] for _ in "kv"]
    for pool in pools[0] + pools[1]:
        pool[-1].zero_()  # the padding slot
    heads = [Heads(i, shape.num_heads, dims[1], dims[2], dims[2] ** -0.5) for i in range(layers)]
    q = bench.random(case.tokens, shape.num_heads, shape.head_dim)
    k, v = (bench.random(case.tokens, *dims[1:]) for _ in "kv")
    bound = _bound(bench, shape, case, dtype)
    row: dict[str, Any] = {"case": case.name, "bound us": bound * 1e6 or None}
    want: Tensor | None = None
    for name in BACKENDS:
        if name == "native" and case.keys > GATHERED:
            continue
        try:
            choose(name, bench.device, shape, dtype)
            made = build(name, pools[0], pools[1], 1, shape)
            found, got = _measured(bench, made, case, layout, heads, (q, k, v))
        except Exception as error:  # a backend that breaks is a result
            bench.failed(f"{case.name}, {name}", error)
            continue
        if want is None or case.float8:  # backends may round the new keys differently
            want = _definition(layout, heads[0], q, pools)
        difference = float((got.float() - want).norm() / want.norm())
        row |= {
            f"{name} us": found["us"], f"{name} of bound": share(bound * 1e6, found["us"]),
            f"{name} launch us": found["launch"], f"{name} plan us": found["plan"],
            f"{name} error": difference, f"{name} how": found["how"],
        }  # fmt: skip
    if case.even and case.keys <= GATHERED and not case.float8:
        row["dense us"] = timed(bench, [_dense(layout, heads[0], q, pools)]).seconds * 1e6
    bench.row("attention", **row)


def _measured(
    bench: Bench, made: Attention, case: Case, layout: Layout, heads: list[Heads],
    qkv: tuple[Tensor, ...],
) -> tuple[dict[str, Any], Tensor]:  # fmt: skip
    """Microseconds of a layer, of its launch and of a plan (once a pass, on the host), and the
    outputs of the first layer."""
    if case.decodes and not case.common and isinstance(made, Capturable):
        longest = max(start + count for start, count in case.rows)
        made = made.frame(len(case.rows), len(layout.pages), longest)
    made.plan(layout)
    got = made.attend(heads[0], *qkv).clone()
    timing = timed(bench, [partial(made.attend, layer, *qkv) for layer in heads])
    plans = []
    for _ in range(1 if bench.tiny else 5):
        bench.sync()
        began = time.perf_counter()
        made.plan(layout)
        plans.append(time.perf_counter() - began)
    found = {"us": timing.seconds, "launch": timing.host, "plan": min(plans)}
    return {name: value * 1e6 for name, value in found.items()} | {"how": timing.how}, got


def layout_of(case: Case) -> Layout:
    """Pages of one token, scattered as in a pool that has been in use for long."""
    pages = np.random.default_rng(0).permutation(case.keys).astype(np.int32)
    shared, own = pages[: case.common], pages[case.common :]
    starts, counts = (np.array(part, dtype=np.int32) for part in zip(*case.rows))
    lengths = starts + counts
    ends = np.cumsum(lengths - case.common)
    tables = [
        np.concatenate([shared, own[end - n + case.common : end]])
        for end, n in zip(ends, lengths)
    ]  # fmt: skip
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = [np.arange(s, n, dtype=np.int32) for s, n in zip(starts, lengths)]
    return Layout(starts, counts, offsets, np.concatenate(tables), np.concatenate(positions))


def _bound(bench: Bench, shape: HeadsShape, case: Case, dtype: torch.dtype) -> float:
    size = 2 * case.keys * shape.num_kv_heads * shape.head_dim * dtype.itemsize
    # A new token sees those before it: half of the new ones on average.
    pairs = sum(count * (start + (count + 1) / 2) for start, count in case.rows)
    return bench.bound(size, 4 * pairs * shape.num_heads * shape.head_dim)


def _rows(layout: Layout, pools: list[list[Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each row, [length, kv_heads, head_dim]."""
    at = torch.from_numpy(layout.pages.astype(np.int64)).to(pools[0][0].device)
    parts = at.split(np.diff(layout.tables).tolist())
    return [(pools[0][0][part], pools[1][0][part]) for part in parts]


def _dense(
    layout: Layout, heads: Heads, q: Tensor, pools: list[list[Tensor]]
) -> Callable[[], Tensor]:
    """Torch's attention over rows of one length."""
    found = _rows(layout, pools)
    keys, values = (torch.stack(part).transpose(1, 2).contiguous() for part in zip(*found))
    queries = q.unflatten(0, (len(layout.counts), -1)).transpose(1, 2).contiguous()
    start, length = int(layout.starts[0]), keys.shape[2]
    mask = None
    if start and queries.shape[2] > 1:
        position = torch.arange(start, length, device=q.device).unsqueeze(1)
        mask = torch.arange(length, device=q.device) <= position
    causal = mask is None and queries.shape[2] > 1
    return partial(
        F.scaled_dot_product_attention, queries, keys, values, mask, is_causal=causal,
        scale=heads.scale, enable_gqa=True,
    )  # fmt: skip


def _definition(layout: Layout, heads: Heads, q: Tensor, pools: list[list[Tensor]]) -> Tensor:
    """Attention by its definition, in float32, a row and a head at a time, from the pools after the
    new keys were written."""
    group, out = heads.num_heads // heads.num_kv_heads, []
    found = zip(_rows(layout, pools), q.split(layout.counts.tolist()), layout.starts.tolist())
    for (keys, values), queries, start in found:
        position = torch.arange(start, start + len(queries), device=q.device).unsqueeze(1)
        hidden = torch.arange(len(keys), device=q.device) > position
        row = []
        for head in range(heads.num_heads):
            scores = queries[:, head].float() @ keys[:, head // group].float().T * heads.scale
            weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
            row.append(weights @ values[:, head // group].float())
        out.append(torch.stack(row, 1).flatten(1))
    return torch.cat(out)
