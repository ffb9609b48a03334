"""Paged attention in plain torch, the same code on every device.

Rows are computed in blocks. The rows of a block are padded to the same numbers of queries and keys.
Keys and values are gathered from the pool by slot; padding reads a slot of zeros and is masked out.
Decode rows of similar length share a block, so the number of blocks does not grow with the number
of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sglang.srt.attention.attention_protocol import Heads, Layout
from sglang.srt.attention.shared_prefix import Rows, kin
from sglang.srt.attention.shared_prefix import common as shared_pages
from sglang.srt.numeric.torch_later import F, Tensor, torch
from sglang.srt.parallel.staging import send, send_all

# A prompt with more query-key pairs is a block alone: padding would cost more than a call saves.
ALONE = 1 << 16
# Limit of the query-key pairs of a block, which bounds its mask and gathered keys.
PAIRS = 1 << 22
# Limit of the scores in memory at a time, if scores are computed explicitly.
SCORES = 1 << 26
# Minimum number of shared keys for which reading them once is worth a second softmax.
COMMON = 128


@dataclass(frozen=True)
class RowBlock:
    """``B`` rows with at most ``N`` queries and ``L`` keys each.

    Attributes:
        first: flat index of the first query, for consecutive queries without padding.
        queries: None for consecutive queries, else the flat indices of the queries [B * N];
            padding repeats a row's last query.
        kept: indices into [B * N] of the queries that are not padding, None for all.
        targets: flat indices of the kept outputs, None for consecutive queries.
        slots: pool slots of the keys [B * L], without ``shared``.
        mask: [B, 1, N, L], added to the scores; None: every query sees every key.
        causal: query ``i`` of a single row sees keys ``0 .. i``.
        shared: slots of the leading keys that all rows share and all their queries see, or None."""

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
    """Implements ``attention.attention_protocol.Attention``.

    ``key_pools[i]`` and ``value_pools[i]`` are [slots, kv_heads, key or value dimensions] of layer
    ``i``; the last slot belongs to no page and must hold zeros. ``windows``: windows of the layers
    (0: none).
    """

    def __init__(
        self,
        key_pools: Sequence[Tensor],
        value_pools: Sequence[Tensor],
        page_size: int,
        windows: Sequence[int] = (0,),
    ) -> None:
        self.key_pools = [as_bytes(pool) for pool in key_pools]
        self.value_pools = [as_bytes(pool) for pool in value_pools]
        self.page_size, self.windows = page_size, sorted(set(windows))
        self.device, self.dtype = key_pools[0].device, key_pools[0].dtype
        if self.dtype == torch.float8_e4m3fn:
            self.dtype = torch.float32  # the masks' dtype
        self.padding = key_pools[0].shape[0] - 1
        self.written: Tensor
        self.blocks: dict[int, list[RowBlock]] = {}
        self._buffers: dict[int, Tensor] = {}
        self._states = self.dtype

    def plan(self, layout: Layout) -> None:
        """Set ``written`` (slots of the new tokens) and ``blocks`` (by window)."""
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

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        """Write the layer's pools at the planned slots, then compute attention over the pools."""
        self._states = q.dtype
        pool = self.key_pools[heads.index]
        pool.index_copy_(0, self.written, narrow(k, pool))
        if v is not None:
            self.value_pools[heads.index].index_copy_(0, self.written, narrow(v, pool))
        shared = v is None
        blocks = self.blocks[heads.window]
        if len(blocks) == 1 and blocks[0].targets is None:
            return self._compute(blocks[0], heads, q, shared)
        out = q.new_empty(q.shape[0], heads.num_heads * heads.value_dim)
        for block in blocks:
            y = self._compute(block, heads, q, shared)
            if block.targets is None:
                out[block.first : block.first + y.shape[0]] = y
            else:
                out.index_copy_(0, block.targets, y)
        return out

    def _compute(self, block: RowBlock, heads: Heads, q: Tensor, shared: bool) -> Tensor:
        """Return the outputs of the block's queries [kept, num_heads * value_dim], flat order."""
        b, n = block.rows, block.width
        if block.queries is None:
            q = q[block.first : block.first + b * n]
        else:
            q = q.index_select(0, block.queries)
        keys, values = self._gather(0, heads, block.slots, shared)
        keys, values = (x.unflatten(0, (b, -1)).transpose(1, 2) for x in (keys, values))
        plain = not heads.soft_cap and heads.sinks is None and heads.value_dim == heads.head_dim
        if block.shared is None and plain:
            y = _flash(block, heads, q, keys, values)
        else:
            y = self._explicit(block, heads, q, keys, values, shared)
        return y if block.kept is None else y.index_select(0, block.kept)

    def _explicit(
        self, block: RowBlock, heads: Heads, q: Tensor, keys: Tensor, values: Tensor, shared: bool
    ) -> Tensor:
        """Compute attention with explicit scores. Return [B * N, num_heads * value_dim].

        Keys that all rows share are read once, for the queries of all rows. Two softmaxes over
        parts of the keys are joined by their log-sum-exps (Juravsky et al. 2024, Hydragen, section
        3.1). A sink is a further part, without values.
        """
        b, n, kv_heads = block.rows, block.width, heads.num_kv_heads
        group = heads.num_heads // kv_heads
        q = q.reshape(b, n, kv_heads, group, -1)
        mask = _causal(n, q.device) if block.causal else block.mask
        # Query heads with the same key head are adjacent: [B, K, N * G, D].
        y, weight = _attend(q.permute(0, 2, 1, 3, 4).flatten(2, 3), keys, values, mask, heads)
        y = y.unflatten(2, (n, group)).transpose(1, 2)
        weight = weight.unflatten(2, (n, group)).transpose(1, 2)
        if block.shared is not None:
            common, common_values = (
                x.transpose(0, 1) for x in self._gather(2, heads, block.shared, shared)
            )
            all_rows = q.permute(2, 0, 1, 3, 4).flatten(1, 3)  # [K, B * N * G, D]
            before, other = _attend(all_rows, common, common_values, None, heads)
            before = before.unflatten(1, (b, n, group)).permute(1, 2, 0, 3, 4)
            other = other.unflatten(1, (b, n, group)).permute(1, 2, 0, 3, 4)
            y = torch.lerp(before, y, torch.sigmoid(weight - other).to(y.dtype))
            weight = torch.logaddexp(weight, other)
        if heads.sinks is not None:
            sinks = heads.sinks.view(kv_heads, group, 1)
            y = y * torch.sigmoid(weight - sinks).to(y.dtype)
        return y.reshape(b * n, heads.num_heads * heads.value_dim)

    def _gather(
        self, which: int, heads: Heads, slots: Tensor, shared: bool
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values at ``slots``, in the buffers numbered ``which`` and one more. They
        are reused, as page faults of new memory of this size cost more than the copy."""
        keys = self._rows(which, self.key_pools[heads.index], slots)
        if shared:
            return keys, keys[..., : heads.value_dim]
        return keys, self._rows(which + 1, self.value_pools[heads.index], slots)

    def _rows(self, which: int, pool: Tensor, slots: Tensor) -> Tensor:
        buffer = self._buffers.get(which)
        if buffer is None or buffer.shape[0] < len(slots):
            buffer = self._buffers[which] = pool.new_empty(len(slots), *pool.shape[1:])
        rows = torch.index_select(pool, 0, slots, out=buffer[: len(slots)])
        return widen(rows, self._states)

    def _block(
        self, layout: Layout, tensors: dict[str, Tensor], rows: Rows, window: int
    ) -> RowBlock:
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
        return RowBlock(b, n, first, queries, kept, targets, slots, mask, causal, shared)

    def _queries(
        self, layout: Layout, tensors: dict[str, Tensor], rows: Rows, n: int
    ) -> tuple[Tensor | None, int, Tensor | None, Tensor | None]:
        """Return ``queries``, ``first``, ``kept``, ``targets`` of a RowBlock of width ``n``."""
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
        """Return the pool slots of positions, same shape. ``table``: index of a table's begin."""
        if self.page_size == 1:
            index = table + positions
            return pages.index_select(0, index.flatten()).view(index.shape)
        index = table + torch.div(positions, self.page_size, rounding_mode="floor")
        page = pages.index_select(0, index.flatten()).view(index.shape)
        return page * self.page_size + positions % self.page_size


def _flash(block: RowBlock, heads: Heads, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute attention by torch's function. Return [B * N, num_heads * head_dim]."""
    b, n, d, kv_heads = block.rows, block.width, heads.head_dim, heads.num_kv_heads
    group = heads.num_heads // kv_heads
    if n == 1:
        # The query heads of a key head become its queries, so keys need not be repeated.
        q = q.reshape(b, kv_heads, group, d)
    else:
        q = q.reshape(b, n, kv_heads * group, d).transpose(1, 2)
        if group > 1:
            keys, values = _repeat(keys, group), _repeat(values, group)
    mask = None if block.mask is None else block.mask.to(q.dtype)
    y = F.scaled_dot_product_attention(
        q, keys, values, mask, is_causal=block.causal, scale=heads.scale
    )
    if n > 1:
        y = y.transpose(1, 2)
    return y.reshape(b * n, heads.num_heads * d)


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, heads: Heads
) -> tuple[Tensor, Tensor]:
    """Compute attention of q [.., K, N * G, D] over keys and values [.., K, L, D or value_dim].
    Return outputs [.., N * G, value_dim] and log-sum-exps of scores [.., N * G, 1], float32.

    ``mask`` [.., N, L] applies to the G heads of each query. At most about ``SCORES`` scores are
    in memory at a time.
    """
    total, length = q.shape[-2], keys.shape[-2]
    group = heads.num_heads // heads.num_kv_heads
    step = max(1, SCORES // (q.shape[:-2].numel() * length * group)) * group
    parts = []
    for first in range(0, total, step):
        part = q[..., first : first + step, :]
        # Scores are changed in place: new memory would cost more than the arithmetic.
        scores = torch.matmul(part, keys.transpose(-1, -2)).float().mul_(heads.scale)
        if heads.soft_cap:
            scores.div_(heads.soft_cap).tanh_().mul_(heads.soft_cap)
        if mask is not None:
            rows = mask[..., first // group : (first + step) // group, :]
            scores.unflatten(-2, (-1, group)).add_(rows.unsqueeze(-2))
        weight = torch.logsumexp(scores, -1, keepdim=True)
        parts.append((torch.matmul(scores.sub_(weight).exp_().to(values.dtype), values), weight))
    if len(parts) == 1:
        return parts[0]
    outputs, weights = zip(*parts)
    return torch.cat(outputs, -2), torch.cat(weights, -2)


def _causal(n: int, device: torch.device) -> Tensor:
    """Return the mask [n, n] to add to the scores: query ``i`` sees keys ``0 .. i``."""
    return torch.full((n, n), float("-inf"), device=device).triu_(1)


def _group(layout: Layout, page_size: int) -> Iterator[Rows]:
    """Yield the row indices of each block.

    Rows share a block if their numbers of queries agree within a factor of 2 and their numbers of
    keys within a factor of 4 (up to 256 keys always). A large row is a block alone. Rows with many
    shared keys form separate blocks.
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
    """Repeat each head of x [B, kv_heads, L, D]. Return [B, kv_heads * group, L, D]."""
    b, heads, length, d = x.shape
    return x.unsqueeze(2).expand(b, heads, group, length, d).reshape(b, heads * group, length, d)


def _index(values: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    return send(np.ascontiguousarray(values, dtype=np.int64), device)


# -- float8 pools, without scales ----------------------------------------------------------------
#
# Pools are viewed as bytes: not every device implements copies of float8 by index.

LARGEST = 448.0  # the largest float8 (e4m3)


def as_bytes(pool: Tensor) -> Tensor:
    """Return a uint8 view of a float8 pool; other pools unchanged."""
    return pool.view(torch.uint8) if pool.dtype == torch.float8_e4m3fn else pool


def narrow(x: Tensor, pool: Tensor) -> Tensor:
    """Return x in the format of ``pool`` (from ``as_bytes``). Float8 clamps values to +-448."""
    if pool.dtype != torch.uint8:
        return x
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)


def widen(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert float8 bytes to ``dtype``: the inverse of ``narrow``."""
    return x.view(torch.float8_e4m3fn).to(dtype) if x.dtype == torch.uint8 else x
