"""Launches of ``attention_kernels``: block sizes by shape, and the arguments' order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from sgl_kernel.triton import attention_kernels as kernels

# Pairs of a tile for one query. A tensor core's tile has 16 rows.
LEAST = 16


def decode_block(group: int) -> int:
    return max(LEAST, int(triton.next_power_of_2(group)))


def config(block: int, head_dim: int, item: int, tree: bool) -> dict[str, int]:
    """Keys of a block, warps and pipeline stages for tiles of ``block`` pairs.

    item: bytes of an element. Chosen so that the accumulator stays in registers and the stages'
    keys and values fit 227 KiB of shared memory beside the queries.
    """
    wide = head_dim > 128
    if item == 4:  # float32 products use no tensor core; this path is for checks
        return {"BLOCK_N": 16 if wide else 32, "num_warps": 8 if block > 64 else 4, "num_stages": 2}
    if block > 64:
        return {"BLOCK_N": 64, "num_warps": 8, "num_stages": 2 if wide else 3}
    if block > 16 and (wide or tree):  # a tree's mask takes registers
        return {"BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_N": 32 if wide else 64, "num_warps": 4, "num_stages": 5 if block <= 16 else 3}


@dataclass(frozen=True)
class Call:
    """Arguments that the launches of one call share; see ``attention.extend`` for the fields."""

    q: Tensor
    keys: Tensor
    values: Tensor
    pages: Tensor
    block: int
    scale: float
    page_size: int
    window: int = 0
    soft_cap: float = 0.0
    sinks: Tensor | None = None
    mask: Tensor | None = None

    def launch(
        self, programs: int, tables: Tensor, starts: Tensor, out: Tensor, *,
        sums: Tensor | None = None, firsts: Tensor | None = None, tiles: Tensor | None = None,
        lows: Tensor | None = None, queries: Tensor | None = None, splits: int = 1,
        part: int = 0, clear: int = 0,
    ) -> None:  # fmt: skip
        """``sums``: ``out`` takes the parts ``part ...`` of the result. No ``tiles``: decode."""
        q, keys = self.q, self.keys
        dim = q.shape[2]
        sinks = self.sinks if sums is None else None  # with parts: ``merge`` adds them
        causal = queries is None
        tree = causal and self.mask is not None
        options: dict[str, Any] = config(self.block, dim, q.element_size(), tree)
        kernels.attend[(programs, keys.shape[1], splits)](
            q, keys, self.values, out, sums, self.pages, tables, starts, firsts, tiles, lows,
            queries, self.mask if causal else None, sinks, self.scale, self.soft_cap, self.window,
            0 if self.mask is None else self.mask.stride(0),
            0 if sums is None else sums.shape[2], part,
            q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), out.stride(0), out.stride(1),
            GROUP=q.shape[1] // keys.shape[1], DIM=dim, BLOCK_D=triton.next_power_of_2(dim),
            BLOCK_M=self.block, PAGE=self.page_size, SPLITS=splits, ONE=tiles is None,
            CAUSAL=causal, WINDOW=self.window > 0, CAP=self.soft_cap > 0.0,
            TREE=tree, PARTIAL=sums is not None, LOW=lows is not None,
            CLEAR=clear, SINKS=sinks is not None, **options,
        )  # fmt: skip

    def parts(self, count: int) -> tuple[Tensor, Tensor]:
        """Buffers [T, heads, count, head_dim] and [T, heads, count] for partial results."""
        tokens, heads, dim = self.q.shape
        out = self.q.new_empty((tokens, heads, count, dim), dtype=torch.float32)
        return out, self.q.new_empty((tokens, heads, count), dtype=torch.float32)

    def merge(self, parts: Tensor, sums: Tensor, out: Tensor) -> None:
        """``out`` = the parts weighted by their log-sum-exp."""
        tokens, heads, count, dim = parts.shape
        kernels.merge[(tokens, heads)](
            parts, sums, out, self.sinks, count, out.stride(0), out.stride(1), DIM=dim,
            BLOCK_D=triton.next_power_of_2(dim), BLOCK_P=triton.next_power_of_2(count), CHUNK=16,
            SINKS=self.sinks is not None, num_warps=4,
        )  # fmt: skip
