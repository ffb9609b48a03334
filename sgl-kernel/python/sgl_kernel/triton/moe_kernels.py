"""The device code of ``moe``."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from sgl_kernel.triton.layer_kernels import LOG2E, activate


@triton.jit
def route(
    logits, weights, chosen, num_experts, stride, TOP_K: tl.constexpr, BLOCK: tl.constexpr,
    RENORMALISE: tl.constexpr,
):  # fmt: skip
    """Program: token. The largest of what is left, ``TOP_K`` times."""
    t = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    x = tl.load(logits + t * stride + e, mask=e < num_experts, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 0)
    total = tl.sum(tl.exp(x - top), 0)
    if RENORMALISE:
        total = 0.0
        left = x
        for _ in range(TOP_K):
            best = tl.max(left, 0)
            at = tl.min(tl.where(left == best, e, BLOCK), 0)
            total += tl.exp(best - top)
            left = tl.where(e == at, float("-inf"), left)
    left = x
    for i in range(TOP_K):
        best = tl.max(left, 0)
        at = tl.min(tl.where(left == best, e, BLOCK), 0)
        tl.store(weights + t * TOP_K + i, tl.exp(best - top) / total)
        tl.store(chosen + t * TOP_K + i, at)
        left = tl.where(e == at, float("-inf"), left)


@triton.jit(do_not_specialize=["pairs"])
def count(chosen, counts, pairs, BLOCK: tl.constexpr):
    """Program: expert. How many pairs chose it."""
    e, i = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for low in range(0, pairs, BLOCK):
        x = tl.load(chosen + low + i, mask=low + i < pairs, other=-1)
        total += (x == e).to(tl.int32)
    tl.store(counts + e, tl.sum(total, 0))


@triton.jit(do_not_specialize=["pairs", "blocks"])
def place(
    chosen, counts, order, owners, pairs, blocks, SIZE: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program: expert. Its pairs in their order, then padding, then the owner of its blocks. The
    last expert also marks the blocks without an owner."""
    e, i, x = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, BLOCK_E)
    sizes = tl.load(counts + x, mask=x < EXPERTS, other=0)
    sizes = (sizes + SIZE - 1) // SIZE
    first = tl.sum(tl.where(x < e, sizes, 0), 0)
    mine = tl.sum(tl.where(x == e, sizes, 0), 0)
    done = first * SIZE
    for low in range(0, pairs, BLOCK):
        hit = tl.load(chosen + low + i, mask=low + i < pairs, other=-1) == e
        rank = tl.cumsum(hit.to(tl.int32), 0)
        tl.store(order + done + rank - 1, low + i, mask=hit)
        done += tl.sum(hit.to(tl.int32), 0)
    end = (first + mine) * SIZE
    for low in range(done, end, BLOCK):
        tl.store(order + low + i, pairs, mask=low + i < end)
    for low in range(first, first + mine, BLOCK):
        tl.store(owners + low + i, e, mask=low + i < first + mine)
    if e == EXPERTS - 1:
        for low in range(first + mine, blocks, BLOCK):
            tl.store(owners + low + i, -1, mask=low + i < blocks)


@triton.jit(do_not_specialize=["pairs", "blocks"])
def product(
    X, W, Bias, Out, order, owners, pairs, blocks, N, K, stride_x, stride_we, stride_wn, stride_b,
    stride_o, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr,
    EVEN: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Out[pair] = X[pair // TOP_K] @ W[expert of the pair].T + Bias, W [E, N, K], Bias [E, N].

    GATED: W is [E, 2 N, K], gates first; Out = act(gate) * up, so neither is stored. EVEN: K is a
    multiple of BLOCK_K. Programs go through ``GROUP`` blocks of pairs before the next columns: a
    tile of weights is then read from the cache by the blocks of one expert.
    """
    columns = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    group = pid // (GROUP * columns)
    size = tl.minimum(blocks - group * GROUP, GROUP)
    block = group * GROUP + pid % (GROUP * columns) % size
    column = pid % (GROUP * columns) // size
    expert = tl.load(owners + block).to(tl.int64)
    if expert >= 0:
        pair = tl.load(order + block * BLOCK_M + tl.arange(0, BLOCK_M))
        real = pair < pairs
        n, k = column * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
        x = X + (pair // TOP_K).to(tl.int64)[:, None] * stride_x + k[None, :]
        # Columns past the end read the last one: no mask in the loop, and no store after it.
        w = W + expert * stride_we + tl.minimum(n, N - 1)[:, None] * stride_wn + k[None, :]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = acc
        for low in range(0, K, BLOCK_K):
            if EVEN:
                a = tl.load(x, mask=real[:, None], other=0.0)
                b = tl.load(w)
            else:
                inside = (low + k < K)[None, :]
                a = tl.load(x, mask=real[:, None] & inside, other=0.0)
                b = tl.load(w, mask=inside, other=0.0)
            acc = tl.dot(a, tl.trans(b), acc, input_precision="tf32x3")
            if GATED:
                if EVEN:
                    b = tl.load(w + N * stride_wn)
                else:
                    b = tl.load(w + N * stride_wn, mask=inside, other=0.0)
                up = tl.dot(a, tl.trans(b), up, input_precision="tf32x3")
            x += BLOCK_K
            w += BLOCK_K
        if BIASED:
            bias = Bias + expert * stride_b + tl.minimum(n, N - 1)
            acc += tl.load(bias).to(tl.float32)[None, :]
            if GATED:
                up += tl.load(bias + N).to(tl.float32)[None, :]
        if GATED:
            if ACT == "clamped_swiglu":
                acc, up = tl.minimum(acc, 7.0), tl.minimum(tl.maximum(up, -7.0), 7.0)
                acc = acc / (1.0 + tl.exp2(acc * (-1.702 * LOG2E))) * (up + 1.0)
            else:
                acc = activate(acc, ACT) * up
        out = Out + pair.to(tl.int64)[:, None] * stride_o + n[None, :]
        tl.store(out, acc.to(Out.dtype.element_ty), mask=real[:, None] & (n < N)[None, :])


@triton.jit
def join(Y, weights, out, width, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Program (token, block of columns): the weighted sum over its choices, in their order."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(TOP_K):
        y = tl.load(Y + (t * TOP_K + j) * width + i, mask=i < width, other=0.0)
        total += tl.load(weights + t * TOP_K + j) * y.to(tl.float32)
    tl.store(out + t * width + i, total.to(out.dtype.element_ty), mask=i < width)
