"""Paged attention: decode, extend, and a prefix that many rows share.

Keys and values of a layer live in two pools [slots, kv_heads, head_dim] of one shape and strides.
Token ``p`` of row ``r`` lies in page ``pages[tables[r] + p // page_size]``, at offset
``p % page_size`` of it; slot = page * page_size + offset.
All rows' new keys and values are in the pools before any of these functions is launched.

Sources: online softmax over blocks, FlashAttention-2 (Dao 2023); split keys, flash-decoding (Dao
et al. 2023); a shared prefix attended once for all its rows and merged by log-sum-exp, Hydragen
(Juravsky et al. 2024, section 3.1) and FlashInfer's cascade (Ye et al. 2024).

Numbers: products of float16 and bfloat16 accumulate in float32, those of float32 are three products
of tf32 each (about 1e-6), which is a path for checks and not tuned; the softmax is float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgl_kernel.triton import checks
from sgl_kernel.triton.attention_launch import Call, decode_block

Int32Array = np.ndarray[Any, np.dtype[np.int32]]

# Keys that a part of a row has at least: merging shorter ones costs more than it saves.
PART = 256
MOST_SPLITS = 64
# Keys of a chunk are a multiple of this, the blocks that the kernel reads them in.
STEP = 64


@dataclass(frozen=True)
class Work:
    """Keys that each program of ``decode`` reads, int32 on the device (``plan_work`` makes them).

    Attributes:
        items: [N, 4] (row, first key, key behind the last, part; part -1: the whole row).
        firsts: [R + 1] where a row's parts begin, of ``parts`` in all.
    """

    items: Tensor
    firsts: Tensor
    parts: int


@dataclass(frozen=True)
class Shared:
    """Prefixes that rows share, as int32 tensors on the device (``plan_shared`` makes them).

    Attributes:
        tables: [G] where in ``pages`` a group's page table begins.
        lengths: [G] tokens that the group's rows share.
        firsts: [G + 1] offsets into ``queries``.
        queries: [M] the groups' rows, group after group.
        tiles: [N, 2] (group, tile) of ``block`` query-head pairs each.
        block: as for ``extend``. splits: parts that a group's keys are cut into.
    """

    tables: Tensor
    lengths: Tensor
    firsts: Tensor
    queries: Tensor
    tiles: Tensor
    block: int
    splits: int


def fair_programs(kv_heads: int, processors: int) -> int:
    """Programs of a KV head that keep ``processors`` multiprocessors busy."""
    return max(1, -(-2 * processors // kv_heads))


def choose_chunk(keys: int, programs: int) -> int:
    """Keys that a program reads at most, where ``programs`` of them read ``keys`` in all."""
    return max(PART, -(-keys // (programs * STEP)) * STEP)


def plan_work(
    lengths: Int32Array, chunk: int, lows: Int32Array | None = None, extra: int = 0, room: int = 0
) -> dict[str, Any]:
    """The fields of ``Work`` as host arrays (int32) and an int: rows of ``lengths`` keys [R], the
    first ``lows`` [R] of which others read, cut into chunks, the largest first.

    extra: parts of a row that those others make. room: items to pad to, with some that do nothing,
    and parts to have (captured graphs); rows of ``n`` keys in all have ``R + n / chunk`` at most.
    """
    low = np.zeros_like(lengths) if lows is None else lows
    count = np.maximum(-(-(lengths - low) // chunk), 1)
    parts = np.where((count > 1) | (low > 0), count + np.where(low > 0, extra, 0), 0)
    firsts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(parts, out=firsts[1:])
    rows = np.repeat(np.arange(len(lengths)), count)
    index = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    begin = low[rows] + index * chunk
    end = np.minimum(begin + chunk, lengths[rows])
    part = np.where(parts[rows] > 0, firsts[rows] + index, -1)
    items = np.zeros((max(room, len(rows)), 4), dtype=np.int32)
    items[len(rows) :, 0] = items[len(rows) :, 3] = -1
    items[: len(rows)] = np.stack([rows, begin, end, part], 1)[
        np.argsort(begin - end, kind="stable")
    ]
    return {"items": items, "firsts": firsts, "parts": max(room, int(firsts[-1]))}


def choose_splits(tiles: int, kv_heads: int, longest: int, processors: int) -> int:
    """Parts that the keys of shared prefixes are cut into: enough programs for ``processors``
    multiprocessors, but no part shorter than ``PART`` keys. Host arithmetic alone.

    longest: tokens of the longest prefix. Returns 1, 2, 4 .. 64.
    """
    splits, programs = 1, max(1, tiles * kv_heads)
    while splits < MOST_SPLITS and programs * splits < 2 * processors:
        if longest < 2 * splits * PART:
            break
        splits *= 2
    return splits


def decode(
    q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, tables: Tensor, lengths: Tensor,
    work: Work, *, scale: float, page_size: int = 1, window: int = 0, soft_cap: float = 0.0,
    sinks: Tensor | None = None, shared: Shared | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One query a row: row ``r``'s sees the last ``window`` (0: all) of its ``lengths[r]`` tokens.

    q: [R, heads, head_dim], head_dim contiguous, any other strides. keys, values:
    [slots, kv_heads, head_dim]. pages: int32 [P]. tables: int32 [R] or [R + 1]. lengths: int32
    [R]; a row of length 0 reads nothing and gets zeros. work: of ``plan_work`` for these lengths. A
    row's bits depend on its own keys and the chunk alone, so a constant chunk makes them
    independent of the batch. soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; 0:
    none. sinks: float32 [heads], a score for each head that joins the softmax's sum and has no
    value. shared: prefixes whose keys are read once for a group's rows and left out of ``work``,
    not with a window. Parts are merged by log-sum-exp and take ``4 * parts * heads * head_dim``
    bytes. Returns [R, heads, head_dim] (``out`` where given), dtype of q. Raises ValueError.
    """
    group = _pools(q, keys, values, page_size, window)
    rows = q.shape[0]
    _tables(q, pages, tables, rows)
    checks.integers(rows, lengths=lengths)
    checks.integers(rows + 1, **{"work.firsts": work.firsts})
    checks.dtype("work.items", work.items, torch.int32)
    checks.shape("work.items", work.items, None, 4)
    checks.same_device(q, lengths=lengths, items=work.items, firsts=work.firsts)
    out = checks.output(out, q, *q.shape)
    _sinks(q, sinks)
    if not rows:
        return out
    call = Call(
        q, keys, values, pages, decode_block(group), scale, page_size, window, soft_cap, sinks
    )
    parts = call.parts(work.parts)
    call.launch(len(work.items), tables, lengths, work.items, out=out, parts=parts)
    if shared is not None and len(shared.tiles):
        _splits("shared.splits", shared.splits)
        if window:
            checks.fail(f"window is {window}; prefixes can be shared without a window alone")
        common = Call(q, keys, values, pages, shared.block, scale, page_size, 0, soft_cap)
        common.launch(
            len(shared.tiles), shared.tables, shared.lengths, shared.tiles, parts=parts,
            firsts=shared.firsts, ends=work.firsts, queries=shared.queries, splits=shared.splits,
        )  # fmt: skip
    if work.parts:
        call.merge(parts, work.firsts, out)
    return out


def choose_block(group: int, head_dim: int, counts: Int32Array, fixed: bool = False) -> int:
    """Query-head pairs of a tile of ``extend``: 16, 64 or 128. ``group``: heads of a KV head.

    fixed: one answer whatever the counts, for bits that do not depend on the batch.
    """
    pairs = group * int(counts.max(initial=1))
    if fixed or (16 < pairs <= 64):
        return 64
    if pairs <= 16:
        return 16
    # The sums of 128 pairs of more than 128 dimensions do not fit the registers.
    return 64 if head_dim > 128 else 128


def plan_tiles(counts: Int32Array, group: int, block: int) -> Int32Array:
    """The tiles of rows with ``counts`` new tokens, most work first: int32 [N, 2] (row, tile).

    A tile behind its row's last query does nothing, so a captured graph may pad with (0, 2**20).
    """
    number = -(-counts.astype(np.int64) * group // block)
    rows = np.repeat(np.arange(len(counts)), number)
    tile = np.arange(len(rows)) - np.repeat(np.cumsum(number) - number, number)
    # A row's last tiles see the most keys: begun last, they would run alone.
    order = np.argsort(-tile, kind="stable")
    return np.ascontiguousarray(np.stack([rows, tile], 1)[order], dtype=np.int32)


def extend(
    q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, tables: Tensor, starts: Tensor,
    firsts: Tensor, tiles: Tensor, *, block: int, scale: float, page_size: int = 1,
    window: int = 0, soft_cap: float = 0.0, sinks: Tensor | None = None,
    mask: Tensor | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of rows with any number of new tokens each.

    q: [T, heads, head_dim], row after row. starts: int32 [R], position of a row's first query.
    firsts: int32 [R + 1], where a row's queries begin in T. tiles: ``plan_tiles`` on the device,
    made with the same ``block``. The query at position ``p`` sees ``max(0, p - window + 1) .. p``.
    mask: int32 [T, words], for drafts that form a tree: bit ``j`` (of word ``j // 32``) of a query
    says whether it sees the row's new token ``j``; it replaces causality among new tokens, of
    which a row has at most ``32 * words``. Tokens before ``starts[r]`` are seen as ever.
    Returns [T, heads, head_dim]; a query's bits depend on its row and ``block`` alone, not on how
    its row was cut into chunks. Raises ValueError.
    """
    _pools(q, keys, values, page_size, window)
    _rows(q, pages, tables, starts, firsts, tiles, mask, block)
    out = checks.output(out, q, *q.shape)
    _sinks(q, sinks)
    call = Call(q, keys, values, pages, block, scale, page_size, window, soft_cap, sinks, mask)
    if len(tiles):
        call.launch(len(tiles), tables, starts, tiles, out=out, firsts=firsts)
    return out


def plan_shared(
    groups: list[tuple[list[int], int]], tables: Int32Array, group: int, head_dim: int,
    kv_heads: int, processors: int,
) -> dict[str, Any]:  # fmt: skip
    """The fields of ``Shared`` as host arrays (int32) and ints, for rows with one query each.

    groups: (rows, tokens that all of them share), every row in at most one group. tables: [R + 1].
    group: heads of a KV head. processors: multiprocessors of the device.
    """
    sizes = np.array([0, *(len(rows) for rows, _ in groups)], dtype=np.int32)
    lengths = np.array([length for _, length in groups], dtype=np.int32)
    block = choose_block(group, head_dim, sizes)
    tiles = plan_tiles(sizes[1:], group, block)
    return {
        "tables": np.array([tables[rows[0]] for rows, _ in groups], dtype=np.int32),
        "lengths": lengths,
        "firsts": np.cumsum(sizes, dtype=np.int32),
        "queries": np.array([r for rows, _ in groups for r in rows], dtype=np.int32),
        "tiles": tiles,
        "block": block,
        "splits": choose_splits(len(tiles), kv_heads, int(lengths.max(initial=0)), processors),
    }


def _pools(q: Tensor, keys: Tensor, values: Tensor, page_size: int, window: int) -> int:
    """Checks the tensors; returns the heads of a KV head."""
    checks.shape("q", q, None, None, None)
    checks.shape("keys", keys, None, None, q.shape[2])
    checks.shape("values", values, *keys.shape)
    checks.dtype("q", q, *checks.FLOATS)
    checks.dtype("keys", keys, q.dtype, torch.float8_e4m3fn)
    checks.dtype("values", values, keys.dtype)
    checks.same_device(q, keys=keys, values=values)
    heads, kv_heads, dim = q.shape[1], keys.shape[1], q.shape[2]
    if keys.stride() != values.stride():
        checks.fail(f"keys have strides {keys.stride()}, values {values.stride()}; give them one")
    if kv_heads < 1 or heads % kv_heads:
        checks.fail(f"{heads} query heads cannot share {kv_heads} KV heads evenly")
    if not 16 <= dim <= 256:
        checks.fail(f"head_dim is {dim}; 16 to 256 is supported")
    if page_size < 1 or window < 0:
        checks.fail(f"page_size is {page_size} and window {window}; at least 1 and 0 are needed")
    return heads // kv_heads


def _sinks(q: Tensor, sinks: Tensor | None) -> None:
    if sinks is not None:
        checks.dtype("sinks", sinks, torch.float32)
        checks.shape("sinks", sinks, q.shape[1])
        checks.same_device(q, sinks=sinks)


def _tables(q: Tensor, pages: Tensor, tables: Tensor, rows: int) -> None:
    checks.integers(None, pages=pages, tables=tables)
    checks.same_device(q, pages=pages, tables=tables)
    if len(tables) not in (rows, rows + 1):
        checks.fail(f"tables has {len(tables)} entries; {rows} rows need {rows} or one more")


def _rows(
    q: Tensor, pages: Tensor, tables: Tensor, starts: Tensor, firsts: Tensor, tiles: Tensor,
    mask: Tensor | None, block: int,
) -> None:  # fmt: skip
    rows = len(starts)
    _tables(q, pages, tables, rows)
    checks.integers(rows, starts=starts)
    checks.integers(rows + 1, firsts=firsts)
    checks.dtype("tiles", tiles, torch.int32)
    checks.shape("tiles", tiles, None, 2)
    checks.same_device(q, starts=starts, firsts=firsts, tiles=tiles, mask=mask)
    if mask is not None:
        checks.dtype("mask", mask, torch.int32)
        checks.shape("mask", mask, q.shape[0], None)
    if block not in (16, 32, 64, 128):
        checks.fail(f"block is {block}; 16, 32, 64 or 128 is needed")


def _splits(name: str, splits: int) -> None:
    if splits < 1 or splits > MOST_SPLITS or splits & (splits - 1):
        checks.fail(f"{name} is {splits}; a power of 2 from 1 to {MOST_SPLITS} is needed")
