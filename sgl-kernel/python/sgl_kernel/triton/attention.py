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

# Keys that a part of a decode row has at least: merging shorter ones costs more than it saves.
PART = 256
MOST_SPLITS = 64


@dataclass(frozen=True)
class Shared:
    """Prefixes that rows share, as int32 tensors on the device (``plan_shared`` makes them).

    Attributes:
        lows: [R] tokens of row ``r`` that its group reads for it, 0 outside of every group.
        tables: [G] where in ``pages`` a group's page table begins.
        lengths: [G] tokens that the group's rows share.
        firsts: [G + 1] offsets into ``queries``.
        queries: [M] flat indices of the queries of the groups' rows, group after group.
        tiles: [N, 2] (group, tile) of ``block`` query-head pairs each.
        block, splits: as for ``extend`` and ``decode``; for the shared part.
    """

    lows: Tensor
    tables: Tensor
    lengths: Tensor
    firsts: Tensor
    queries: Tensor
    tiles: Tensor
    block: int
    splits: int


def choose_splits(rows: int, kv_heads: int, longest: int, processors: int) -> int:
    """Parts that the keys of a decode row are cut into: enough programs for ``processors``
    multiprocessors, but no part shorter than ``PART`` keys. Host arithmetic alone.

    longest: tokens of the longest row, or the most it may have (captured graphs).
    Returns 1, 2, 4 .. 64.
    """
    splits, programs = 1, max(1, rows * kv_heads)
    while splits < MOST_SPLITS and programs * splits < 2 * processors:
        if longest < 2 * splits * PART:
            break
        splits *= 2
    return splits


def decode(
    q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, tables: Tensor, lengths: Tensor, *,
    scale: float, splits: int, page_size: int = 1, window: int = 0, soft_cap: float = 0.0,
    sinks: Tensor | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One query a row: row ``r``'s sees the last ``window`` (0: all) of its ``lengths[r]`` tokens.

    q: [R, heads, head_dim], head_dim contiguous, any other strides. keys, values:
    [slots, kv_heads, head_dim]. pages: int32 [P]. tables: int32 [R] or [R + 1]. lengths: int32
    [R]; a row of length 0 (the padding of a captured graph) reads nothing and gets zeros.
    splits: 1 to 64, a power of 2. A row's bits depend on its own keys and ``splits`` alone, so a
    constant makes them independent of the batch. soft_cap: scores become
    ``soft_cap * tanh(score / soft_cap)``; 0: none. sinks: float32 [heads], a score for each head
    that joins the softmax's sum and has no value.
    Returns [R, heads, head_dim] (``out`` where given), dtype of q. Raises ValueError.
    """
    group = _pools(q, keys, values, page_size, window)
    _tables(q, pages, tables, q.shape[0])
    checks.integers(q.shape[0], lengths=lengths)
    checks.same_device(q, lengths=lengths)
    _splits("splits", splits)
    out = checks.output(out, q, *q.shape)
    _sinks(q, sinks)
    call = Call(
        q, keys, values, pages, decode_block(group), scale, page_size, window, soft_cap, sinks
    )
    if not q.shape[0]:
        return out
    if splits == 1:
        call.launch(q.shape[0], tables, lengths, out)
        return out
    parts, sums = call.parts(splits)
    call.launch(q.shape[0], tables, lengths, parts, sums=sums, splits=splits)
    call.merge(parts, sums, out)
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
        call.launch(len(tiles), tables, starts, out, firsts=firsts, tiles=tiles)
    return out


def plan_shared(
    groups: list[tuple[list[int], int]], counts: Int32Array, tables: Int32Array, group: int,
    head_dim: int, kv_heads: int, processors: int,
) -> dict[str, Any]:  # fmt: skip
    """The fields of ``Shared`` as host arrays (int32) and ints.

    groups: (rows, tokens that all of them share), every row in at most one group; the tokens lie
    before the rows' first queries. counts: [R] new tokens a row. tables: [R + 1]. group: heads of
    a KV head. processors: multiprocessors of the device.
    """
    offsets = np.cumsum(counts) - counts
    lows = np.zeros(len(counts), dtype=np.int32)
    queries = [np.zeros(0, dtype=np.int32)]
    for rows, length in groups:
        lows[rows] = length
        queries.append(np.concatenate([np.arange(counts[r]) + offsets[r] for r in rows]))
    sizes = np.array([len(x) for x in queries], dtype=np.int32)
    lengths = np.array([length for _, length in groups], dtype=np.int32)
    block = choose_block(group, head_dim, sizes)
    tiles = plan_tiles(sizes[1:], group, block)
    return {
        "lows": lows,
        "tables": np.array([tables[rows[0]] for rows, _ in groups], dtype=np.int32),
        "lengths": lengths,
        "firsts": np.cumsum(sizes, dtype=np.int32),
        "queries": np.concatenate(queries).astype(np.int32),
        "tiles": tiles,
        "block": block,
        "splits": choose_splits(len(tiles), kv_heads, int(lengths.max(initial=0)), processors),
    }


def cascade(
    q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, tables: Tensor, starts: Tensor,
    firsts: Tensor, tiles: Tensor, shared: Shared, *, block: int, splits: int, scale: float,
    page_size: int = 1, soft_cap: float = 0.0, sinks: Tensor | None = None,
    mask: Tensor | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``extend`` for short rows (decode rows: count 1) whose prefixes are shared: the keys of a
    group are read once for all its rows, those after them row by row, cut into ``splits``.

    The parts are merged by log-sum-exp. Partial results take
    ``4 * T * heads * head_dim * (splits + shared.splits)`` bytes, so long chunks of a prompt, which
    gain nothing, are better left to ``extend``. A window cannot be combined with it.
    """
    _pools(q, keys, values, page_size, 0)
    _rows(q, pages, tables, starts, firsts, tiles, mask, block)
    _splits("splits", splits)
    _splits("shared.splits", shared.splits)
    checks.integers(len(starts), **{"shared.lows": shared.lows})
    out = checks.output(out, q, *q.shape)
    if not len(tiles):
        return out
    _sinks(q, sinks)
    call = Call(q, keys, values, pages, block, scale, page_size, 0, soft_cap, sinks, mask)
    parts, sums = call.parts(splits + shared.splits)
    call.launch(
        len(tiles), tables, starts, parts, sums=sums, firsts=firsts, tiles=tiles,
        lows=shared.lows, splits=splits, clear=shared.splits,
    )  # fmt: skip
    if len(shared.tiles):
        group = Call(q, keys, values, pages, shared.block, scale, page_size, 0, soft_cap)
        group.launch(
            len(shared.tiles), shared.tables, shared.lengths, parts, sums=sums,
            firsts=shared.firsts, tiles=shared.tiles, queries=shared.queries,
            splits=shared.splits, part=splits,
        )  # fmt: skip
    call.merge(parts, sums, out)
    return out


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
