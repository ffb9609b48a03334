"""Paged attention in plain torch, the same code on every device.

Rows are computed in blocks. A block is a set of rows padded to one number of queries and one
number of keys: its keys and values are gathered from the pool by slot, padding reads a slot that
holds zeros and is masked out. All decode rows of similar length share a block, so the number of
blocks does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from srt.attention.base import Heads, Layout
from srt.attention.shared import Rows, kin
from srt.attention.shared import common as shared_pages
from srt.parallel.staging import send, send_all

# Query-key pairs above which a row is computed alone: padding would cost more than a call saves.
ALONE = 1 << 16
# Query-key pairs of one block: bounds the mask and the gathered keys.
PAIRS = 1 << 22
# Keys that rows must have in common for reading them once to be worth a second softmax.
COMMON = 128


@dataclass(frozen=True)
class Block:
    """``B`` rows with at most ``N`` queries and ``L`` keys each.

    Attributes:
        first: flat index of the first query, where the block's queries are consecutive.
        queries: flat query indices [B * N] otherwise, padding repeats a row's last query.
        kept: indices into [B * N] of the queries that are not padding, None where all are.
        targets: flat indices the kept outputs go to, None where the block's are consecutive.
        slots: pool slots of the keys [B * L].
        mask: [B, 1, N, L], added to the scores; None: every query sees every key.
        causal: query ``i`` of a lone row sees keys ``0 .. i``.
        shared: slots of the keys that all rows have in common and all their queries see; the other
            fields are about the keys after them. None where there are none.
    """

    rows: int
    width: int
    first: int
    queries: Tensor | None
    kept: Tensor | None
    targets: Tensor | None
    slots: Tensor
    mask: Tensor | None
    causal: bool
    shared: Tensor | None


class NativeAttention:
    """Implements ``attention.base.Attention``.

    ``key_pools[i]`` and ``value_pools[i]`` are [slots, kv_heads, head_dim] of layer ``i``; the last
    slot belongs to no page and must hold zeros. ``windows`` are the windows that layers will ask
    for (0: none).
    """

    def __init__(
        self,
        key_pools: Sequence[Tensor],
        value_pools: Sequence[Tensor],
        page_size: int,
        windows: Sequence[int] = (0,),
    ) -> None:
        self.key_pools, self.value_pools = list(key_pools), list(value_pools)
        self.page_size, self.windows = page_size, sorted(set(windows))
        self.device, self.dtype = key_pools[0].device, key_pools[0].dtype
        self.padding = key_pools[0].shape[0] - 1
        self.written: Tensor
        self.blocks: dict[int, list[Block]] = {}
        self._buffers: dict[int, Tensor] = {}

    def plan(self, layout: Layout) -> None:
        """Replaces ``written`` (slots of the new tokens) and ``blocks`` (per window)."""
        device = {
            "pages": layout.pages, "positions": layout.positions,
            "starts": layout.starts, "counts": layout.counts, "tables": layout.tables[:-1],
            "firsts": np.cumsum(layout.counts, dtype=np.int32) - layout.counts,
            "rows": np.repeat(np.arange(len(layout.counts), dtype=np.int32), layout.counts),
        }  # fmt: skip
        tensors = send_all(device, self.device)
        self.written = self._slots(
            tensors["pages"], tensors["tables"].index_select(0, tensors["rows"]),
            tensors["positions"],
        ).long()  # fmt: skip
        self.blocks = {
            window: [
                self._block(layout, tensors, rows, window)
                for rows in _group(layout, self.page_size)
            ]
            for window in self.windows
        }

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Writes the layer's pools at the planned slots, then reads them."""
        key_pool, value_pool = self.key_pools[heads.index], self.value_pools[heads.index]
        key_pool.index_copy_(0, self.written, k)
        value_pool.index_copy_(0, self.written, v)
        blocks = self.blocks[heads.window]
        if len(blocks) == 1 and blocks[0].targets is None:
            return self._compute(blocks[0], heads, q, key_pool, value_pool)
        out = q.new_empty(q.shape[0], heads.num_heads * heads.head_dim)
        for block in blocks:
            y = self._compute(block, heads, q, key_pool, value_pool)
            if block.targets is None:
                out[block.first : block.first + y.shape[0]] = y
            else:
                out.index_copy_(0, block.targets, y)
        return out

    def _compute(
        self, block: Block, heads: Heads, q: Tensor, key_pool: Tensor, value_pool: Tensor
    ) -> Tensor:
        """Outputs of the block's queries [kept, num_heads * head_dim], in flat order."""
        b, n = block.rows, block.width
        d, kv_heads, group = (
            heads.head_dim, heads.num_kv_heads, heads.num_heads // heads.num_kv_heads,
        )  # fmt: skip
        if block.queries is None:
            q = q[block.first : block.first + b * n]
        else:
            q = q.index_select(0, block.queries)
        keys = self._gather(0, key_pool, block.slots).view(b, -1, kv_heads, d).transpose(1, 2)
        values = self._gather(1, value_pool, block.slots).view(b, -1, kv_heads, d).transpose(1, 2)
        if block.shared is not None:
            y = self._compute_shared(block, heads, q, keys, values, key_pool, value_pool)
            return y if block.kept is None else y.index_select(0, block.kept)
        if n == 1:
            # The query heads of one key head stand in for queries: nothing is repeated.
            q = q.reshape(b, kv_heads, group, d)
        else:
            q = q.reshape(b, n, kv_heads * group, d).transpose(1, 2)
            if group > 1:
                keys, values = _repeat(keys, group), _repeat(values, group)
        if heads.soft_cap:
            mask = _causal(q) if block.causal else block.mask
            y, _ = _attend(q, keys, values, mask, heads.scale, heads.soft_cap)
        else:
            y = F.scaled_dot_product_attention(
                q, keys, values, block.mask, is_causal=block.causal, scale=heads.scale
            )
        if n > 1:
            y = y.transpose(1, 2)
        y = y.reshape(b * n, heads.num_heads * d)
        return y if block.kept is None else y.index_select(0, block.kept)

    def _compute_shared(
        self, block: Block, heads: Heads, q: Tensor, keys: Tensor, values: Tensor,
        key_pool: Tensor, value_pool: Tensor,
    ) -> Tensor:  # fmt: skip
        """The shared keys are read once, by the queries of all rows; two softmaxes over parts of
        the keys are joined by their log-sum-exp (Juravsky et al. 2024, Hydragen, section 3.1)."""
        b, n, d, kv_heads = block.rows, block.width, heads.head_dim, heads.num_kv_heads
        group = heads.num_heads // kv_heads
        assert block.shared is not None
        q = q.reshape(b, n, kv_heads, group, d)
        common = self._gather(2, key_pool, block.shared).transpose(0, 1)  # [K, S, D]
        common_values = self._gather(3, value_pool, block.shared).transpose(0, 1)
        y, weight = _attend(
            q.permute(2, 0, 1, 3, 4).reshape(kv_heads, b * n * group, d),
            common, common_values, None, heads.scale, heads.soft_cap,
        )  # fmt: skip
        y = y.view(kv_heads, b, n, group, d).permute(1, 2, 0, 3, 4)
        weight = weight.view(kv_heads, b, n, group, 1).permute(1, 2, 0, 3, 4)
        # Own keys: [B, K, N * G, D], a query's mask holds for the heads of its group.
        mask = block.mask
        if mask is not None:
            mask = mask.repeat_interleave(group, dim=2)
        own, own_weight = _attend(
            q.permute(0, 2, 1, 3, 4).reshape(b, kv_heads, n * group, d),
            keys, values, mask, heads.scale, heads.soft_cap,
        )  # fmt: skip
        own = own.view(b, kv_heads, n, group, d).transpose(1, 2)
        own_weight = own_weight.view(b, kv_heads, n, group, 1).transpose(1, 2)
        share = torch.sigmoid(own_weight - weight).to(y.dtype)
        return torch.lerp(y, own, share).reshape(b * n, heads.num_heads * d)

    def _gather(self, which: int, pool: Tensor, slots: Tensor) -> Tensor:
        """Rows of a pool, in a buffer that the next gather of the same number overwrites: fresh
        memory of this size costs more in page faults than the copy itself."""
        buffer = self._buffers.get(which)
        if buffer is None or buffer.shape[0] < len(slots):
            buffer = self._buffers[which] = pool.new_empty(len(slots), *pool.shape[1:])
        return torch.index_select(pool, 0, slots, out=buffer[: len(slots)])

    def _block(self, layout: Layout, tensors: dict[str, Tensor], rows: Rows, window: int) -> Block:
        counts, starts = layout.counts[rows], layout.starts[rows]
        b, n = len(rows), int(counts.max())
        least = int(starts.min())
        common = 0
        if not window:
            common = shared_pages(layout, rows, -(-least // self.page_size)) * self.page_size
        common = min(common, least)
        if common < COMMON:
            common = 0
        lows = np.maximum(starts - window + 1, 0) if window else np.full_like(starts, common)
        keys = int((starts + counts - lows).max())
        queries, first, kept, targets = self._queries(layout, tensors, rows, n)
        row = _index(rows, self.device)
        start = tensors["starts"].index_select(0, row).unsqueeze(1)  # [B, 1]
        end = start + tensors["counts"].index_select(0, row).unsqueeze(1)
        key = torch.arange(keys, dtype=torch.int32, device=self.device).unsqueeze(0)
        if window:
            key = key + (start - (window - 1)).clamp_(min=0)
        elif common:
            key = key + common
        exists = key < end  # [B, L]
        table = tensors["tables"].index_select(0, row).unsqueeze(1)
        slots = self._slots(tensors["pages"], table, key.where(exists, 0))
        slots = slots.where(exists, self.padding).flatten()
        causal = b == 1 and n > 1 and int(starts[0]) == 0 and (not window or n <= window)
        mask = None
        if not causal and (n > 1 or int((starts + counts - lows).min()) < keys):
            query = start + torch.arange(n, dtype=torch.int32, device=self.device)  # [B, N]
            seen = key.unsqueeze(1) <= query.unsqueeze(2)  # [B, N, L]
            if window:
                seen &= key.unsqueeze(1) > query.unsqueeze(2) - window
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
            mask = mask.masked_fill_(~seen, float("-inf")).unsqueeze(1)
        shared = None
        if common:
            place = torch.arange(common, dtype=torch.int32, device=self.device)
            shared = self._slots(tensors["pages"], tensors["tables"][int(rows[0])], place)
        return Block(b, n, first, queries, kept, targets, slots, mask, causal, shared)

    def _queries(
        self, layout: Layout, tensors: dict[str, Tensor], rows: Rows, n: int
    ) -> tuple[Tensor | None, int, Tensor | None, Tensor | None]:
        """How a block of ``n`` queries a row reads and writes the flat dimension."""
        firsts = np.cumsum(layout.counts) - layout.counts
        first, counts = int(firsts[rows[0]]), layout.counts[rows]
        if len(rows) == rows[-1] - rows[0] + 1 and int(counts.min()) == n:
            return None, first, None, None
        step = np.arange(n)
        real = step < counts[:, None]
        flat = firsts[rows][:, None] + np.minimum(step, counts[:, None] - 1)
        targets = _index(flat[real], self.device)
        kept = None if real.all() else _index(np.flatnonzero(real), self.device)
        return _index(flat.ravel(), self.device), first, kept, targets

    def _slots(self, pages: Tensor, table: Tensor, positions: Tensor) -> Tensor:
        """Pool slots of positions in page tables that begin at ``table``, same shape."""
        if self.page_size == 1:
            index = table + positions
            return pages.index_select(0, index.flatten()).view(index.shape)
        index = table + torch.div(positions, self.page_size, rounding_mode="floor")
        page = pages.index_select(0, index.flatten()).view(index.shape)
        return page * self.page_size + positions % self.page_size


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, soft_cap: float
) -> tuple[Tensor, Tensor]:
    """Attention [.., N, D], and the log-sum-exp of its scores [.., N, 1] in float32."""
    # In place: the scores are large, and fresh memory costs more than the arithmetic.
    scores = torch.matmul(q, keys.transpose(-1, -2)).float().mul_(scale)
    if soft_cap:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if mask is not None:
        scores.add_(mask)
    weight = torch.logsumexp(scores, -1, keepdim=True)
    return torch.matmul(scores.sub_(weight).exp_().to(values.dtype), values), weight


def _causal(q: Tensor) -> Tensor:
    """Query ``i`` of q [.., N, D] sees keys ``0 .. i`` of N: added to the scores [N, N]."""
    n = q.shape[-2]
    return torch.full((n, n), float("-inf"), device=q.device).triu_(1)


def _group(layout: Layout, page_size: int) -> Iterator[Rows]:
    """Sets of rows for one block each.

    Rows share a block where their numbers of queries agree within a factor of 2 and their numbers
    of keys within a factor of 4 (short ones always), unless a row is large enough to be alone.
    Rows with many keys in common are kept apart from others.
    """
    counts, lengths = layout.counts, layout.starts + layout.counts
    if len(counts) == 1:
        yield np.zeros(1, dtype=np.int64)
        return
    queries = np.ceil(np.log2(counts)).astype(np.int64)
    keys = np.ceil(np.log2(np.maximum(lengths, 256)) / 2).astype(np.int64)
    alone = (counts > 1) & (counts.astype(np.int64) * lengths > ALONE)
    label = queries * 64 + keys
    label = label * (len(counts) + 1) + kin(layout, page_size, COMMON)
    label[alone] = -1 - np.flatnonzero(alone)
    for value in np.unique(label):
        rows = np.flatnonzero(label == value)
        area = int(counts[rows].max()) * int(lengths[rows].max())
        size = max(1, PAIRS // area)
        for i in range(0, len(rows), size):
            yield rows[i : i + size]


def _repeat(x: Tensor, group: int) -> Tensor:
    """[B, kv_heads, L, D] -> [B, kv_heads * group, L, D]."""
    b, heads, length, d = x.shape
    return x.unsqueeze(2).expand(b, heads, group, length, d).reshape(b, heads * group, length, d)


def _index(values: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    return send(np.ascontiguousarray(values, dtype=np.int64), device)
