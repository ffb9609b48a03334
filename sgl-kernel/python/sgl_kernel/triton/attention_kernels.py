"""The device code of ``attention``. Triton's language, which type checkers of Python misread.

One kernel computes tiles of queries. A tile is ``BLOCK_M`` (query, head) pairs of one row and one
KV head: the heads that share keys stand side by side, so each key is loaded once for all of them
and the products fill a tensor core's tile. Decode is the tile of one query; a tile over the queries
of many rows reads what they share.

    pair i of tile t:  query (t * BLOCK_M + i) // GROUP,  head kv_head * GROUP + that % GROUP

Scores are kept in units of log 2 (``exp2`` is one instruction). A block of keys that a query sees
nothing of changes neither its maximum nor its sums, so its bits do not depend on what else is in
its tile.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def blocks(
    acc, top, total, q, K, V, pages, mask, lo, hi, position, start, new, flat, scale, cap, window,
    words, stride_s, d, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, CHECK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys ``[lo, hi)``. ``CHECK``: some may be hidden from some query.

    acc: [M, D], weighted sum of values; top, total: [M], the largest score so far and the sum of
    the weights relative to it. position, flat: [M] of the queries. new: tokens of the row.
    """
    for at in range(lo, hi, BLOCK_N):
        place = at + tl.arange(0, BLOCK_N)
        inside = place < hi
        slot = place if PAGE == 1 else place // PAGE
        if CHECK:
            slot = tl.load(pages + slot, mask=inside, other=0).to(tl.int64)
        else:
            slot = tl.load(pages + slot).to(tl.int64)
        if PAGE > 1:
            slot = slot * PAGE + place % PAGE
        where = slot[:, None] * stride_s + d[None, :]
        if CHECK or DIM != BLOCK_D:
            real = inside[:, None] & (d < DIM)[None, :]
            k = tl.load(K + where, mask=real, other=0.0)
        else:
            k = tl.load(K + where)
        k = k.to(q.dtype)
        score = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
        if CAP:
            # cap * tanh(score / cap); exp2 may overflow to infinity, which gives 1 as it should.
            score = cap * (1.0 - 2.0 / (tl.exp2(score * (2.0 * LOG2E / cap)) + 1.0))
        score = score * LOG2E
        if CHECK:
            seen = tl.broadcast_to(inside[None, :], score.shape)
            if CAUSAL:
                if TREE:
                    j = place - start
                    bit = (j >= 0) & (j < new)
                    word = tl.load(
                        mask + flat[:, None] * words + (j // 32)[None, :],
                        mask=bit[None, :] & (position >= 0)[:, None], other=0,
                    )  # fmt: skip
                    tree = ((word >> (j % 32)[None, :]) & 1) != 0
                    seen = seen & ((j < 0)[None, :] | (bit[None, :] & tree))
                else:
                    seen = seen & (place[None, :] <= position[:, None])
                if WINDOW:
                    seen = seen & (place[None, :] > position[:, None] - window)
            score = tl.where(seen, score, float("-inf"))
        best = tl.maximum(top, tl.max(score, 1))
        base = tl.where(best == float("-inf"), 0.0, best)
        shrink = tl.exp2(top - base)
        weight = tl.exp2(score - base[:, None])
        if CHECK or DIM != BLOCK_D:
            v = tl.load(V + where, mask=real, other=0.0)
        else:
            v = tl.load(V + where)
        v = v.to(q.dtype)
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weight.to(v.dtype), v, acc, input_precision="tf32x3")
        top = best
    return acc, top, total


@triton.jit(do_not_specialize=["window", "words"])
def attend(
    Q, K, V, Out, Part, Lse, pages, tables, starts, firsts, tiles, ends, queries, mask, sinks,
    scale, cap, window, words, stride_qt, stride_qh, stride_s, stride_h, stride_ot, stride_oh,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, PAGE: tl.constexpr, ONE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, TREE: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Program (tile, KV head, split). See ``attention`` for what the pointers hold.

    ONE: ``tiles`` are items (row, begin, end, part): the row's one query, its last token, reads the
    keys [begin, end); ``starts`` holds lengths. The result of part -1 is the row's; another is
    written to ``Part``, float32 [parts, heads, DIM], with its log-sum-exp in ``Lse``. A row of -1
    does nothing. CAUSAL false: the queries ``queries[firsts[g] ...]`` all see ``[0, starts[g])``,
    cut into as many splits as there are; these are the last of a row's parts, which end at
    ``ends[row + 1]``.
    """
    split, kv = tl.program_id(2), tl.program_id(1)
    if ONE:
        item = tiles + 4 * tl.program_id(0)
        row, part = tl.load(item), tl.load(item + 3)
        new, row, tile = (row >= 0).to(tl.int32), tl.maximum(row, 0), 0
        start, first = tl.load(starts + row) - 1, row
    else:
        row, tile = tl.load(tiles + 2 * tl.program_id(0)), tl.load(tiles + 2 * tl.program_id(0) + 1)
        start, first = tl.load(starts + row), tl.load(firsts + row)
        new = tl.load(firsts + row + 1) - first
    pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    index, real, d = pair // GROUP, pair < new * GROUP, tl.arange(0, BLOCK_D)
    flat = (first + index).to(tl.int64)
    if not CAUSAL:
        flat = tl.load(queries + flat, mask=real, other=0).to(tl.int64)
    head = kv * GROUP + pair % GROUP
    position = tl.where(real, start + index, -1)
    there = real[:, None] & (d < DIM)[None, :]
    q = tl.load(
        Q + flat[:, None] * stride_qt + head[:, None] * stride_qh + d[None, :],
        mask=there, other=0.0,
    )  # fmt: skip
    early, late = tile * BLOCK_M // GROUP, ((tile + 1) * BLOCK_M - 1) // GROUP
    low, hi, plain = bounds(start, new, early, late, window, BLOCK_N, CAUSAL, WINDOW, TREE)
    if ONE:
        low, hi = tl.maximum(low, tl.load(item + 1)), tl.minimum(hi, tl.load(item + 2))
    if not CAUSAL:
        span = tl.cdiv(tl.cdiv(hi - low, tl.num_programs(2)), BLOCK_N) * BLOCK_N
        hi = tl.minimum(hi, low + (split + 1) * span)
        low = low + split * span
    plain = tl.maximum(low, low + (tl.minimum(plain, hi) - low) // BLOCK_N * BLOCK_N)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    pages += tl.load(tables + row)
    K += kv * stride_h
    V += kv * stride_h
    if not WINDOW:
        acc, top, total = blocks(
            acc, top, total, q, K, V, pages, mask, low, plain, position, start, new, flat, scale,
            cap, window, words, stride_s, d, DIM, BLOCK_D, BLOCK_N, PAGE, False, CAUSAL, WINDOW,
            CAP, TREE,
        )  # fmt: skip
        low = plain
    acc, top, total = blocks(
        acc, top, total, q, K, V, pages, mask, low, hi, position, start, new, flat, scale, cap,
        window, words, stride_s, d, DIM, BLOCK_D, BLOCK_N, PAGE, True, CAUSAL, WINDOW, CAP, TREE,
    )  # fmt: skip
    if SINKS:
        sink = tl.load(sinks + head) * LOG2E
        if ONE:
            sink = tl.where(part < 0, sink, float("-inf"))  # ``merge`` adds it to parts
        best = tl.maximum(top, sink)
        best = tl.where(best == float("-inf"), 0.0, best)
        shrink = tl.exp2(top - best)
        total = total * shrink + tl.exp2(sink - best)
        acc = acc * shrink[:, None]
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if CAUSAL:
        where = flat[:, None] * stride_ot + head[:, None] * stride_oh + d[None, :]
        if ONE:
            there = there & (part < 0)
        tl.store(Out + where, acc.to(Out.dtype.element_ty), mask=there)
    if ONE or not CAUSAL:
        if ONE:
            real = real & (part >= 0)
        else:
            part = tl.load(ends + flat + 1, mask=real, other=0) - tl.num_programs(2) + split
        at = part.to(tl.int64) * (tl.num_programs(1) * GROUP) + head
        tl.store(Lse + at, top + tl.log2(total), mask=real)
        there = real[:, None] & (d < DIM)[None, :]
        tl.store(Part + at[:, None] * DIM + d[None, :], acc, mask=there)


@triton.jit
def bounds(
    start, new, early, late, window, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """Keys [low, hi) that a tile of the row's queries ``early .. late`` may see, and the end of
    those that all of them do."""
    low = 0
    if CAUSAL:
        hi = start + tl.minimum(late + 1, new)
        plain = start + early + 1
        if TREE:
            hi = start + new
            plain = start
        if WINDOW:
            # On a multiple of the block, so that blocks do not depend on where the tile begins.
            low = tl.maximum(0, (start + early - window + 1) // BLOCK_N * BLOCK_N)
    else:
        hi = start
        plain = start
    if early >= new:
        hi = low
    return low, tl.maximum(hi, low), plain


@triton.jit
def merge(
    Part, Lse, Out, firsts, sinks, stride_ot, stride_oh, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Program (row, head): the row's parts ``firsts[row] ..`` weighted by 2 ** Lse; zeros where all
    are empty. A row without parts is left as it is."""
    t, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first, last = tl.load(firsts + t), tl.load(firsts + t + 1)
    if first < last:
        d = tl.arange(0, BLOCK_D)
        top, total = tl.full([], float("-inf"), tl.float32), tl.full([], 0.0, tl.float32)
        acc = tl.zeros([BLOCK_D], tl.float32)
        if SINKS:
            top, total = tl.load(sinks + head) * LOG2E, total + 1.0
        for low in range(first, last, CHUNK):
            part = low + tl.arange(0, CHUNK)
            at = part.to(tl.int64) * heads + head
            lse = tl.load(Lse + at, mask=part < last, other=float("-inf"))
            best = tl.maximum(top, tl.max(lse, 0))
            base = tl.where(best == float("-inf"), 0.0, best)
            weight, shrink = tl.exp2(lse - base), tl.exp2(top - base)
            # An empty part holds nothing that may be read.
            real = (weight > 0.0)[:, None] & (d < DIM)[None, :]
            x = tl.load(Part + at[:, None] * DIM + d[None, :], mask=real, other=0.0)
            acc = acc * shrink + tl.sum(x * weight[:, None], 0)
            total = total * shrink + tl.sum(weight, 0)
            top = best
        acc = acc / tl.where(total == 0.0, 1.0, total)
        where = t.to(tl.int64) * stride_ot + head * stride_oh + d
        tl.store(Out + where, acc.to(Out.dtype.element_ty), mask=d < DIM)
