"""Random passes for tests of attention, and one pass held to the definition."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sglang.srt.attention import reference_attention
from sglang.srt.attention.attention_protocol import Attention, Heads, Layout
from torch import Tensor


def random_layout(
    r: random.Random, page_size: int, longest: int = 20, kinds: str = "mixed", rows: int = 0
) -> tuple[Layout, int]:
    """A layout on scattered pages, and the pool's pages. Some rows begin with the pages of another
    one, as far as both have computed.

    kinds: "mixed" for decode rows, chunks and whole prompts; "decode" for decode rows alone.
    rows: how many, 0 for any number.
    """
    ranges = []
    for _ in range(rows or r.randint(1, 7)):
        kind = r.choice(["decode", "decode", "chunk", "prompt"]) if kinds == "mixed" else kinds
        start = 0 if kind == "prompt" else r.randint(0, longest)
        ranges.append((start, 1 if kind == "decode" else r.randint(1, longest)))
    needed = [-(-(start + count) // page_size) for start, count in ranges]
    pages = list(range(sum(needed) + 5))
    r.shuffle(pages)
    starts, counts = (np.array(values, dtype=np.int32) for values in zip(*ranges))
    tables = np.cumsum([0, *needed]).astype(np.int32)
    positions = np.concatenate([np.arange(s, s + c, dtype=np.int32) for s, c in ranges])
    table = np.array(pages[: sum(needed)], dtype=np.int32)
    for row in range(1, len(ranges)):
        other = r.randrange(row)
        common = min(starts[row], starts[other]) // page_size
        if r.random() < 0.6:
            table[tables[row] : tables[row] + common] = table[tables[other] :][:common]
    return Layout(starts, counts, tables, table, positions), len(pages)


Build = Callable[..., Attention]


def hold_to_the_definition(
    build: Build,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    tolerance: dict[str, Any],
    dims: tuple[int, ...] = (16,),
    sinks: bool = False,
    values: tuple[int, ...] = (0,),
    shared: bool = False,
    **layout_options: Any,
) -> None:
    """Random passes of one attention over layers with and without window and soft cap.

    build: (keys, values, page_size, windows, heads) -> Attention. What may be written is the new
    tokens' slots alone. sinks: half of the layers have them. values: dimensions of values, 0 for
    those of keys. shared: values are a part of the keys.
    """
    r = random.Random(seed)
    torch.manual_seed(seed)
    page_size, kv_heads, group = r.choice([1, 2, 4]), r.choice([1, 2]), r.choice([1, 3, 4])
    dim, windows = r.choice(dims), sorted({0, r.randint(1, 12)})
    wide = r.choice(values) or dim
    layouts = [random_layout(r, page_size, **layout_options) for _ in range(2)]
    slots = max(pages for _, pages in layouts) * page_size + 1
    sizes = [dim, dim, wide, wide]
    pools = [torch.randn(slots, kv_heads, n, dtype=dtype, device=device) for n in sizes]
    if shared:
        pools[2:] = [pool[..., :wide] for pool in pools[:2]]
    for pool in pools:
        pool[-1] = 0
    exact = [pool.double().cpu() for pool in pools]
    attention = build(pools[:2], pools[2:], page_size, tuple(windows), kv_heads * group)
    for layout, _ in layouts:
        attention.plan(layout)
        total = int(layout.counts.sum())
        for index, window in enumerate(windows):
            cap = r.choice([0.0, 1.5])
            drawn = torch.randn(kv_heads * group, device=device) if sinks else None
            heads = Heads(
                index, kv_heads * group, kv_heads, dim, r.uniform(0.1, 1.0), window, cap, wide,
                drawn if r.random() < 0.5 else None,
            )  # fmt: skip
            # Queries and keys of a model are parts of one tensor.
            qk = torch.randn(total, kv_heads * (group + 1), dim, dtype=dtype, device=device)
            q, k = qk.split([kv_heads * group, kv_heads], 1)
            v: Tensor | None = torch.randn(total, kv_heads, wide, dtype=dtype, device=device)
            if shared:
                v = None
            got = attention.attend(heads, q, k, v)
            real: list[Any] = [x if x is None else x.double().cpu() for x in (q, k, v)]
            want = reference_attention.attend(
                heads, layout, real[0], real[1], real[2], exact[index], exact[2 + index], page_size
            )
            torch.testing.assert_close(got.double().cpu(), want, **tolerance)
    for pool, expected in zip(pools, exact[:2] if shared else exact):
        assert torch.equal(pool.double().cpu(), expected), "an old token was written"
