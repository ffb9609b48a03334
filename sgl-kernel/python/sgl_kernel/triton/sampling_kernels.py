"""The device code of ``sampling``.

Top-k and top-p are one search: for the greatest bound below which nothing is kept,

    weight of the logits above the bound >= target

with weight 1 and target k, or weight ``exp(logit)`` and target ``p`` of the whole. A logit is kept
if what is strictly larger weighs less than the target, so ties stay together. The bound is found on
the float32 numbers in their order, three candidates a pass over the row, until one logit at most is
left between the bound and its successor: about ten passes over a row that the L2 cache holds, and
no sort. Sums are monotone in the set they are over (a fixed tree of roundings of terms >= 0), so
the search is exact.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# One below the key of -inf.
BOTTOM = tl.constexpr(-2139095042)


@triton.jit
def keyed(x):
    """float32 -> int32 of the same order (-0.0 below 0.0)."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def largest(row, vocab, BLOCK: tl.constexpr):
    """The largest of ``vocab`` logits, its lowest id, and whether any is NaN."""
    i = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    at = tl.zeros([BLOCK], tl.int32)
    odd = tl.zeros([BLOCK], tl.int32)
    for low in range(0, vocab, BLOCK):
        x = tl.load(row + low + i, mask=low + i < vocab, other=float("-inf"))
        better = (x > best) | ((low == 0) & (x == best))
        at = tl.where(better, low + i, at)
        best = tl.where(better, x, best)
        odd = tl.where(x != x, 1, odd)
    top = tl.max(best, 0)
    # A lane that saw nothing above -inf holds its own number or 0, none of them out of range.
    token = tl.min(tl.where((best == top) & (at < vocab), at, vocab - 1), 0)
    return top, token, tl.max(odd, 0)


@triton.jit
def search(
    row, vocab, low, high, more, target, top, slope, MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """The greatest bound in [low, high) whose weight above is >= ``target``, or an equal one:
    which of the row's logits are above it is the same. int64 keys; ``low`` must satisfy it, and
    ``more`` logits are above it."""
    i = tl.arange(0, BLOCK)
    left, less = more, more * 0
    while (high - low > 1) & (left > 1):
        span = high - low
        a, b, c = low + span // 4, low + span // 2, low + span * 3 // 4
        na = tl.zeros([BLOCK], tl.int32)
        nb, nc = na, na
        wa = tl.zeros([BLOCK], tl.float32)
        wb, wc = wa, wa
        for at in range(0, vocab, BLOCK):
            x = tl.load(row + at + i, mask=at + i < vocab, other=float("-inf"))
            key = keyed(x)
            ia, ib, ic = key > a.to(tl.int32), key > b.to(tl.int32), key > c.to(tl.int32)
            inside = at + i < vocab
            na += (ia & inside).to(tl.int32)
            nb += (ib & inside).to(tl.int32)
            nc += (ic & inside).to(tl.int32)
            if MASS:
                w = tl.exp2((x - top) * slope)
                wa += tl.where(ia, w, 0.0)
                wb += tl.where(ib, w, 0.0)
                wc += tl.where(ic, w, 0.0)
        ka, kb, kc = tl.sum(na, 0), tl.sum(nb, 0), tl.sum(nc, 0)
        if MASS:
            fa, fb, fc = tl.sum(wa, 0), tl.sum(wb, 0), tl.sum(wc, 0)
        else:
            fa, fb, fc = ka.to(tl.float32), kb.to(tl.float32), kc.to(tl.float32)
        if fc >= target:
            low, more = c, kc
        elif fb >= target:
            low, more, high, less = b, kb, c, kc
        elif fa >= target:
            low, more, high, less = a, ka, b, kb
        else:
            high, less = a, ka
        left = more - less
    return low


@triton.jit
def weights(row, at, vocab, low, top, slope, BLOCK: tl.constexpr):
    """exp((logit - top) / temperature) in float64 where it is kept, else 0."""
    i = at + tl.arange(0, BLOCK)
    x = tl.load(row + i, mask=i < vocab, other=float("-inf"))
    kept = (keyed(x) > low) & (i < vocab)
    return tl.where(kept, tl.exp2((x - top) * slope), 0.0).to(tl.float64)


@triton.jit
def invert(row, vocab, low, top, slope, uniform, BLOCK: tl.constexpr):
    """The first id at which the sum of weights exceeds ``uniform`` of the whole, -1 if none."""
    i = tl.arange(0, BLOCK)
    total = uniform * 0.0
    for at in range(0, vocab, BLOCK):
        total += tl.sum(weights(row, at, vocab, low, top, slope, BLOCK), 0)
    goal = uniform * total
    done = uniform * 0.0
    token, last, at = vocab * 0 - 1, vocab * 0 - 1, vocab * 0
    while (at < vocab) & (token < 0):
        w = weights(row, at, vocab, low, top, slope, BLOCK)
        some = tl.sum(w, 0)
        here = tl.max(tl.where(w > 0.0, at + i, -1), 0)
        last = tl.maximum(last, here)
        if done + some > goal:
            over = (done + tl.cumsum(w, 0) > goal) & (w > 0.0)
            token = tl.min(tl.where(over, at + i, vocab), 0)
            # The two sums round differently: where only one exceeds, it is the last of the block.
            token = tl.where(token == vocab, here, token)
        done += some
        at += BLOCK
    return tl.where(token < 0, last, token)


@triton.jit
def sample(
    logits, temperature, top_k, top_p, min_p, uniform, best, tokens, vocab, stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program: row."""
    r = tl.program_id(0)
    row = logits + r.to(tl.int64) * stride
    top, token, odd = largest(row, vocab, BLOCK)
    tl.store(best + r, tl.where(odd != 0, float("nan"), top))
    heat = tl.load(temperature + r)
    if (heat > 0.0) & (odd == 0) & (top > float("-inf")) & (top < float("inf")):
        slope = LOG2E / heat
        low = tl.full([], BOTTOM, tl.int64)
        high = keyed(top).to(tl.int64)
        k = tl.load(top_k + r)
        p = tl.load(top_p + r)
        if (k > 0) & (k < vocab):
            low = search(
                row, vocab, low, high, vocab, k.to(tl.float32), top, slope, False, BLOCK
            )  # fmt: skip
        if p < 1.0:
            i = tl.arange(0, BLOCK)
            mass = tl.zeros([BLOCK], tl.float32)
            above = tl.zeros([BLOCK], tl.int32)
            for at in range(0, vocab, BLOCK):
                x = tl.load(row + at + i, mask=at + i < vocab, other=float("-inf"))
                kept = (keyed(x) > low) & (at + i < vocab)
                mass += tl.where(kept, tl.exp2((x - top) * slope), 0.0)
                above += kept.to(tl.int32)
            goal = p * tl.sum(mass, 0)
            low = search(
                row, vocab, low, high, tl.sum(above, 0), goal, top, slope, True, BLOCK
            )  # fmt: skip
        m = tl.load(min_p + r)
        if m > 0.0:
            least = keyed(top + heat * tl.log(m)).to(tl.int64) - 1
            low = tl.maximum(low, tl.minimum(least, high - 1))
        drawn = invert(row, vocab, low, top, slope, tl.load(uniform + r), BLOCK)
        token = tl.where(drawn < 0, token, drawn)
    tl.store(tokens + r, token.to(tl.int64))


@triton.jit
def greedy(logits, best, tokens, vocab, stride, BLOCK: tl.constexpr):
    """Program: row."""
    r = tl.program_id(0)
    top, token, odd = largest(logits + r.to(tl.int64) * stride, vocab, BLOCK)
    tl.store(best + r, tl.where(odd != 0, float("nan"), top))
    tl.store(tokens + r, token.to(tl.int64))


@triton.jit
def apply_mask(logits, mask, rows, vocab, stride, words, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Program (mask, block of the vocabulary)."""
    m = tl.program_id(0)
    r = m
    if ROWS:
        r = tl.load(rows + m)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(mask + m.to(tl.int64) * words + i // 32, mask=i < vocab, other=-1)
    denied = ((word >> (i % 32)) & 1) == 0
    tl.store(logits + r.to(tl.int64) * stride + i, float("-inf"), mask=denied & (i < vocab))


@triton.jit
def penalise(
    logits, rows, ids, counts, repetition, frequency, presence, pairs, stride, BLOCK: tl.constexpr
):
    """Program: block of (row, id) pairs."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = i < pairs
    row = tl.load(rows + i, mask=real, other=0)
    at = row.to(tl.int64) * stride + tl.load(ids + i, mask=real, other=0)
    count = tl.load(counts + i, mask=real, other=0).to(tl.float32)
    x = tl.load(logits + at, mask=real, other=0.0)
    factor = tl.load(repetition + row)
    x = tl.where(x < 0.0, x * factor, x / factor)
    x -= tl.load(frequency + row) * count
    x -= tl.where(count > 0.0, tl.load(presence + row), 0.0)
    tl.store(logits + at, x, mask=real)
