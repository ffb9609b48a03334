"""The device code of ``sampling``.

A row is cut into blocks, a program each, so that a row of 128 k logits keeps 32 multiprocessors
busy. Weights ``exp((logit - largest) / temperature)`` are multiples of 2 ** -42 in int64: a sum is
exact, so every cut of the row, and every order of programs, gives the same token.

    peaks     (row, block)  largest logit and its lowest id, least finite logit
    weigh     (row, block)  weight and number of the logits in each of a few bins
    gather    (row, block)  the logits of the bins in which a cut may fall: the candidates
    choose    (row)         the cut among the candidates, the block, the token

A logit is kept by top-k or top-p if what is strictly larger weighs less than the target (1 each and
k, or their weights and ``p`` of the whole), so ties stay together. Both cuts are one search: for
the greatest bound with

    weight of the logits above the bound >= target

over the float32 numbers in their order, three bounds a pass over the candidates, until one
candidate at most is left between the bound and its successor. A bin falls in the same order as the
logits, so what is in earlier bins than the candidates is kept and what is in later ones is not. A
logit of weight 0 is never sampled and counts nowhere.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# Multiples of a weight's unit in 1, the weight of the largest logit. 2 ** 20 of them fit an int64.
ONE = tl.constexpr(float(1 << 42))
# Halvings of the weight that the bins cover at most. The last bin has all that is smaller.
REACH = tl.constexpr(16.0)
# One below the key of -inf.
BOTTOM = tl.constexpr(-2139095041)
# Above the key of inf.
CEILING = tl.constexpr(2139095041)


@triton.jit
def keyed(x):
    """float32 -> int32 of the same order, one number for both zeros."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@triton.jit
def weight(x, top, slope):
    """``exp((x - top) / temperature)`` in units. A subtraction, a product and ``exp2`` leave the
    compiler nothing to contract: a logit weighs the same in every kernel."""
    return (tl.exp2((x - top) * slope) * ONE).to(tl.int64)


@triton.jit
def bin_of(x, top, slope, grain, BINS: tl.constexpr):
    """The bin of a logit: never smaller for a smaller logit."""
    return tl.minimum((top - x) * slope * grain, BINS - 1.0).to(tl.int32)


@triton.jit
def peaks(logits, tops, ids, floors, vocab, stride, blocks, BLOCK: tl.constexpr):
    """Program (row, block): the largest logit, NaN where there is one, and its lowest id; the least
    finite logit, infinite if there is none."""
    r, b = tl.program_id(0), tl.program_id(1)
    i = b * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + r.to(tl.int64) * stride + i, mask=i < vocab, other=float("-inf"))
    odd = tl.max((x != x).to(tl.int32), 0)
    x = tl.where(x != x, float("-inf"), x)
    top = tl.max(x, 0)
    at = r * blocks + b
    tl.store(ids + at, tl.min(tl.where(x == top, i, vocab - 1), 0))
    tl.store(tops + at, tl.where(odd != 0, float("nan"), top))
    tl.store(floors + at, tl.min(tl.where(x > float("-inf"), x, float("inf")), 0))


@triton.jit
def peak(tops, ids, r, vocab, blocks, BLOCKS: tl.constexpr):
    """A row's largest logit, NaN where there is one, and its lowest id."""
    b = tl.arange(0, BLOCKS)
    top = tl.load(tops + r * blocks + b, mask=b < blocks, other=float("-inf"))
    odd = tl.max((top != top).to(tl.int32), 0)
    best = tl.max(tl.where(top != top, float("-inf"), top), 0)
    token = tl.load(ids + r * blocks + b, mask=b < blocks, other=2147483647)
    token = tl.min(tl.where(top == best, token, vocab - 1), 0)
    return tl.where(odd != 0, float("nan"), best), token


@triton.jit
def greedy(tops, ids, best, tokens, vocab, blocks, BLOCKS: tl.constexpr):
    """Program: row."""
    r = tl.program_id(0)
    top, token = peak(tops, ids, r, vocab, blocks, BLOCKS)
    tl.store(best + r, top)
    tl.store(tokens + r, token.to(tl.int32))


@triton.jit
def scales(tops, floors, temperature, r, blocks, BLOCKS: tl.constexpr, BINS: tl.constexpr):
    """A row's largest logit, halvings of the weight a unit of logits, bins a halving, and whether
    the row is sampled at all (not greedy, the largest logit finite)."""
    b = tl.arange(0, BLOCKS)
    top = tl.load(tops + r * blocks + b, mask=b < blocks, other=float("-inf"))
    floor = tl.load(floors + r * blocks + b, mask=b < blocks, other=float("inf"))
    odd = tl.max((top != top).to(tl.int32), 0)
    top, floor = tl.max(tl.where(top != top, float("-inf"), top), 0), tl.min(floor, 0)
    heat = tl.load(temperature + r)
    sampled = (heat > 0.0) & (odd == 0) & (top > float("-inf")) & (top < float("inf"))
    # Finite: 0 * inf would be NaN.
    slope = tl.minimum(tl.full([], LOG2E, tl.float32) / tl.where(sampled, heat, 1.0), 1e30)
    reach = tl.minimum(tl.maximum((top - floor) * slope, 1e-6), REACH)
    return top, slope, BINS / reach, sampled


@triton.jit
def weigh(
    logits, temperature, tops, floors, masses, counts, vocab, stride, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Program (row, block): int64 weight and int32 number of its logits by bin."""
    r, b = tl.program_id(0), tl.program_id(1)
    top, slope, grain, sampled = scales(tops, floors, temperature, r, blocks, BLOCKS, BINS)
    if sampled:
        i = b * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + r.to(tl.int64) * stride + i, mask=i < vocab, other=float("-inf"))
        w = weight(x, top, slope)
        where = tl.where(w > 0, bin_of(x, top, slope, grain, BINS), BINS)
        at = (r * blocks + b) * BINS
        for j in tl.static_range(BINS):
            tl.store(masses + at + j, tl.sum(tl.where(where == j, w, 0), 0))
            tl.store(counts + at + j, tl.sum((where == j).to(tl.int32), 0))


@triton.jit
def share(p, mass):
    """The least weight >= ``p`` of ``mass``, at least 1: the largest logit is always kept."""
    goal = p.to(tl.float64) * mass.to(tl.float64)
    least = goal.to(tl.int64)
    return tl.maximum(tl.where(least.to(tl.float64) < goal, least + 1, least), 1)


@triton.jit
def least_of(top, heat, m):
    """The least logit that min-p keeps; contracted by us, so that it is one number everywhere."""
    return tl.fma(heat, tl.log(m), top)


@triton.jit
def undecided(mass, count, top, slope, grain, heat, k, p, m, BINS: tl.constexpr):
    """First and last bin in which a cut of a row may fall; ``BINS`` and -1 if it has none.

    mass, count: of the row by bin. The bin of the k-th largest logit is known, what top-k keeps of
    it is not: top-p's bound is between those of the least and of the most.
    """
    j = tl.arange(0, BINS)
    mass, count = tl.cumsum(mass, 0), tl.cumsum(count, 0)
    whole = tl.max(mass, 0)
    first, last = tl.full([], BINS, tl.int32), tl.full([], -1, tl.int32)
    low, high = whole, whole
    if (k > 0) & (k < tl.max(count, 0)):
        last = tl.min(tl.where(count >= k, j, BINS), 0)
        first = last
        low = tl.max(tl.where(j < last, mass, 0), 0)
        high = tl.max(tl.where(j <= last, mass, 0), 0)
    if p < 1.0:
        first = tl.min(tl.where(mass >= share(p, low), j, BINS), 0)
        last = tl.maximum(last, tl.min(tl.where(mass >= share(p, high), j, BINS), 0))
    if m > 0.0:
        edge = bin_of(tl.minimum(least_of(top, heat, m), top), top, slope, grain, BINS)
        first, last = tl.minimum(first, edge), tl.maximum(last, edge)
    return first, last


@triton.jit
def gather(
    logits, temperature, top_k, top_p, min_p, tops, floors, masses, counts, lists, sizes, vocab,
    stride, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BINS: tl.constexpr,
    LIST: tl.constexpr,
):  # fmt: skip
    """Program (row, block): its candidates, in order of ids, and their number. More than ``LIST``
    are not written: ``choose`` then reads the row."""
    r, b = tl.program_id(0), tl.program_id(1)
    top, slope, grain, sampled = scales(tops, floors, temperature, r, blocks, BLOCKS, BINS)
    if sampled:
        mass, count = binned(masses, counts, r, blocks, BLOCKS, BINS)
        k, p, m = tl.load(top_k + r), tl.load(top_p + r), tl.load(min_p + r)
        first, last = undecided(
            tl.sum(mass, 0), tl.sum(count, 0), top, slope, grain, tl.load(temperature + r), k, p,
            m, BINS,
        )  # fmt: skip
        j = tl.arange(0, BINS)
        own = tl.load(counts + (r * blocks + b) * BINS + j)
        size = tl.sum(tl.where((j >= first) & (j <= last), own, 0), 0)
        tl.store(sizes + r * blocks + b, size)
        if (size > 0) & (size <= LIST):
            i = b * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(logits + r.to(tl.int64) * stride + i, mask=i < vocab, other=float("-inf"))
            where = bin_of(x, top, slope, grain, BINS)
            found = (where >= first) & (where <= last) & (weight(x, top, slope) > 0)
            at = tl.cumsum(found.to(tl.int32), 0) - 1
            tl.store(lists + (r * blocks + b) * LIST + at, x, mask=found)


@triton.jit
def binned(masses, counts, r, blocks, BLOCKS: tl.constexpr, BINS: tl.constexpr):
    """Weights and numbers of a row [BLOCKS, BINS]."""
    b, j = tl.arange(0, BLOCKS), tl.arange(0, BINS)
    at = (r * blocks + b)[:, None] * BINS + j[None, :]
    real = (b < blocks)[:, None] & (j < BINS)[None, :]
    return tl.load(masses + at, mask=real, other=0), tl.load(counts + at, mask=real, other=0)


@triton.jit
def total(x):
    """Sum of a matrix."""
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def candidates(values, step, size, at, top, slope, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """Keys and weights [BLOCKS, WIDTH] of candidates, weight 0 where there is none: of each block
    those from ``at`` on."""
    column = at + tl.arange(0, WIDTH)
    real = column[None, :] < size[:, None]
    x = tl.load(
        values + tl.arange(0, BLOCKS)[:, None] * step + column[None, :], mask=real,
        other=float("-inf"),
    )  # fmt: skip
    return keyed(x), weight(x, top, slope)


@triton.jit
def extremes(values, step, size, top, slope, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """The least key of the candidates, less 1, the greatest, and how many there are."""
    least = tl.full([BLOCKS, WIDTH], CEILING, tl.int32)
    greatest = tl.full([BLOCKS, WIDTH], BOTTOM, tl.int32)
    count = tl.zeros([BLOCKS, WIDTH], tl.int32)
    for at in range(0, tl.max(size, 0), WIDTH):
        key, w = candidates(values, step, size, at, top, slope, BLOCKS, WIDTH)
        least = tl.minimum(least, tl.where(w > 0, key, CEILING))
        greatest = tl.maximum(greatest, tl.where(w > 0, key, BOTTOM))
        count += (w > 0).to(tl.int32)
    low = tl.min(tl.min(least, 1), 0).to(tl.int64) - 1
    return low, tl.max(tl.max(greatest, 1), 0).to(tl.int64), total(count)


@triton.jit
def kept(values, step, size, low, top, slope, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """Weight by block [BLOCKS] and number of the candidates above a bound."""
    mass = tl.zeros([BLOCKS, WIDTH], tl.int64)
    count = tl.zeros([BLOCKS, WIDTH], tl.int32)
    for at in range(0, tl.max(size, 0), WIDTH):
        key, w = candidates(values, step, size, at, top, slope, BLOCKS, WIDTH)
        inside = key > low.to(tl.int32)
        mass += tl.where(inside, w, 0)
        count += (inside & (w > 0)).to(tl.int32)
    return tl.sum(mass, 1), total(count)


@triton.jit
def search(
    values, step, size, before, low, high, more, target, top, slope, MASS: tl.constexpr,
    BLOCKS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The greatest bound in [low, high) whose weight above is >= ``target``, or an equal one: which
    candidates are above it is the same.

    before: weight of what is kept anyway. low, high: int64 keys; the weight above ``low`` is enough
    and that above ``high`` is not. more: candidates above ``low``.
    """
    left, less = more, more * 0
    while (high - low > 1) & (left > 1):
        span = high - low
        a, b, c = low + span // 4, low + span // 2, low + span * 3 // 4
        na = tl.zeros([BLOCKS, WIDTH], tl.int32)
        nb, nc = na, na
        wa = tl.zeros([BLOCKS, WIDTH], tl.int64)
        wb, wc = wa, wa
        for at in range(0, tl.max(size, 0), WIDTH):
            key, w = candidates(values, step, size, at, top, slope, BLOCKS, WIDTH)
            ia, ib, ic = key > a.to(tl.int32), key > b.to(tl.int32), key > c.to(tl.int32)
            na += (ia & (w > 0)).to(tl.int32)
            nb += (ib & (w > 0)).to(tl.int32)
            nc += (ic & (w > 0)).to(tl.int32)
            if MASS:
                wa += tl.where(ia, w, 0)
                wb += tl.where(ib, w, 0)
                wc += tl.where(ic, w, 0)
        ka, kb, kc = total(na), total(nb), total(nc)
        if MASS:
            fa, fb, fc = total(wa), total(wb), total(wc)
        else:
            fa, fb, fc = ka.to(tl.int64), kb.to(tl.int64), kc.to(tl.int64)
        if before + fc >= target:
            low, more = c, kc
        elif before + fb >= target:
            low, more, high, less = b, kb, c, kc
        elif before + fa >= target:
            low, more, high, less = a, ka, b, kb
        else:
            high, less = a, ka
        left = more - less
    return low


@triton.jit
def choose(
    logits, temperature, top_k, top_p, min_p, uniform, tops, ids, floors, masses, counts, lists,
    sizes, best, tokens, vocab, stride, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    BINS: tl.constexpr, LIST: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Program: row."""
    r = tl.program_id(0)
    row = logits + r.to(tl.int64) * stride
    largest, token = peak(tops, ids, r, vocab, blocks, BLOCKS)
    tl.store(best + r, largest)
    top, slope, grain, sampled = scales(tops, floors, temperature, r, blocks, BLOCKS, BINS)
    if sampled:
        heat, p, m = tl.load(temperature + r), tl.load(top_p + r), tl.load(min_p + r)
        k = tl.load(top_k + r)
        mass, count = binned(masses, counts, r, blocks, BLOCKS, BINS)
        number = tl.sum(count, 0)
        first, last = undecided(tl.sum(mass, 0), number, top, slope, grain, heat, k, p, m, BINS)
        b, j = tl.arange(0, BLOCKS), tl.arange(0, BINS)
        own = tl.sum(tl.where((j < first)[None, :], mass, 0), 1)
        low = tl.full([], BOTTOM, tl.int64)
        if last >= 0:
            size = tl.load(sizes + r * blocks + b, mask=b < blocks, other=0)
            before = tl.sum(tl.where(j < first, number, 0), 0).to(tl.int64)
            whole = tl.max(size, 0) > LIST
            values = lists + r.to(tl.int64) * blocks * LIST
            step = tl.where(whole, BLOCK, LIST)
            if whole:
                values = row
                size = tl.minimum(tl.maximum(vocab - b * BLOCK, 0), BLOCK)
                own, before = own * 0, before * 0
            bottom, high, more = extremes(values, step, size, top, slope, BLOCKS, WIDTH)
            limited = (k > 0) & (k < tl.sum(number, 0))
            if limited:
                low = search(
                    values, step, size, before, bottom, high, more, k.to(tl.int64), top, slope,
                    False, BLOCKS, WIDTH,
                )  # fmt: skip
            if p < 1.0:
                low = tl.maximum(low, bottom)
                part, more = kept(values, step, size, low, top, slope, BLOCKS, WIDTH)
                left = total(mass)
                if limited:
                    left = tl.sum(own + part, 0)
                low = search(
                    values, step, size, tl.sum(own, 0), low, high, more, share(p, left), top, slope,
                    True, BLOCKS, WIDTH,
                )  # fmt: skip
            if m > 0.0:
                least = keyed(least_of(top, heat, m)).to(tl.int64) - 1
                low = tl.maximum(low, tl.minimum(least, keyed(top).to(tl.int64) - 1))
            part, more = kept(values, step, size, low, top, slope, BLOCKS, WIDTH)
            own += part
        token = invert(row, vocab, low, own, top, slope, tl.load(uniform + r), BLOCK, BLOCKS)
    tl.store(tokens + r, token.to(tl.int32))


@triton.jit
def invert(row, vocab, low, own, top, slope, uniform, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """The first id at which the sum of the weights kept exceeds ``uniform`` of the whole. own:
    their sums by block, [BLOCKS]. The whole is positive, so there is such an id."""
    b, i = tl.arange(0, BLOCKS), tl.arange(0, BLOCK)
    whole = tl.sum(own, 0)
    goal = (uniform * whole.to(tl.float64)).to(tl.int64)
    goal = tl.minimum(goal, whole - 1)  # a product of 62 bits may round up
    over = tl.cumsum(own, 0)
    block = tl.min(tl.where(over > goal, b, BLOCKS), 0)
    goal -= tl.sum(tl.where(b < block, own, 0), 0)
    i = block * BLOCK + i
    x = tl.load(row + i, mask=i < vocab, other=float("-inf"))
    w = tl.where(keyed(x) > low.to(tl.int32), weight(x, top, slope), 0)
    return tl.min(tl.where(tl.cumsum(w, 0) > goal, i, vocab - 1), 0)


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


@triton.jit(do_not_specialize=["pairs"])
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
