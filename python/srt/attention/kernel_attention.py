"""Attention by sgl-kernel on a CPU, for passes that are computed layer by layer: those of models
that cannot be recorded as an op list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sgl_kernel import paged
from sglang.srt.attention.attention_protocol import Heads, Layout
from sglang.srt.numeric.torch_later import Tensor, torch


class KernelAttention:
    """Implements ``attention.attention_protocol.Attention`` over ``pools``, one per layer. Pools
    may be int8.

    Queries, keys and values are converted to float32.
    """

    def __init__(self, pools: Sequence[paged.KV], page_size: int, threads: int) -> None:
        self.pools, self.page_size, self.threads = list(pools), page_size, threads
        self._pass: paged.Pass
        self._still = paged.Rotary(torch.empty(0, 0), torch.empty(0, 0))  # rotates nothing

    def plan(self, layout: Layout) -> None:
        ids = np.zeros(len(layout.positions), dtype=np.int32)  # attention does not read them
        self._pass = paged.Pass(
            ids, layout.positions, layout.starts, layout.counts, layout.tables, layout.pages,
            self.page_size,
        )  # fmt: skip

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        shape = paged.Heads(
            heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.scale, heads.window,
            heads.soft_cap, heads.value_dim, v is None, heads.sinks,
        )  # fmt: skip
        parts = [x.flatten(1) for x in (q, k, v) if x is not None]
        qkv = torch.cat(parts, dim=1).float()
        pool = self.pools[heads.index]
        paged.append(self._pass, shape, self._still, qkv, pool, self.threads)
        found: Tensor = paged.attend(self._pass, shape, qkv, pool, self.threads)
        return found
