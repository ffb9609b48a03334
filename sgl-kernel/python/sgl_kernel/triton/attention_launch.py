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
        self, programs: int, tables: Tensor, starts: Tensor, tiles: Tensor, *,
        out: Tensor | None = None, parts: tuple[Tensor, Tensor] | None = None,
        firsts: Tensor | None = None, ends: Tensor | None = None, queries: Tensor | None = None,
        splits: int = 1,
    ) -> None:  # fmt: skip
        """``tiles``: of rows that begin at ``firsts``, or, without ``firsts``, items of decode
        rows. ``parts``: what ``parts`` returned."""
        q, keys = self.q, self.keys
        dim, causal = q.shape[2], queries is None
        sinks = self.sinks if causal else None
        tree = causal and self.mask is not None
        options: dict[str, Any] = config(self.block, dim, q.element_size(), tree)
        part, sums = (None, None) if parts is None else parts
        strides = (0, 0) if out is None else (out.stride(0), out.stride(1))
        kernels.attend[(programs, keys.shape[1], splits)](
            q, keys, self.values, out, part, sums, self.pages, tables, starts, firsts, tiles, ends,
            queries, self.mask if causal else None, sinks, self.scale, self.soft_cap, self.window,
            0 if self.mask is None else self.mask.stride(0),
            q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), *strides,
            GROUP=q.shape[1] // keys.shape[1], DIM=dim, BLOCK_D=triton.next_power_of_2(dim),
            BLOCK_M=self.block, PAGE=self.page_size, ONE=firsts is None, CAUSAL=causal,
            WINDOW=self.window > 0, CAP=self.soft_cap > 0.0, TREE=tree, SINKS=sinks is not None,
            **options,
        )  # fmt: skip

    def parts(self, count: int) -> tuple[Tensor, Tensor]:
        """Buffers [count, heads, head_dim] and [count, heads] for partial results."""
        heads, dim = self.q.shape[1:]
        out = self.q.new_empty((count, heads, dim), dtype=torch.float32)
        return out, self.q.new_empty((count, heads), dtype=torch.float32)

    def merge(self, parts: tuple[Tensor, Tensor], firsts: Tensor, out: Tensor) -> None:
        """Rows of ``out`` that have parts = these, weighted by their log-sum-exp."""
        tokens, heads, dim = self.q.shape
        kernels.merge[(tokens, heads)](
            *parts, out, firsts, self.sinks, out.stride(0), out.stride(1), DIM=dim,
            BLOCK_D=triton.next_power_of_2(dim), CHUNK=16, SINKS=self.sinks is not None,
            num_warps=4,
        )  # fmt: skip
