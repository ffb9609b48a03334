"""The device code of ``append`` and ``norm``: one pass over each row, float32 inside."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def narrow(x, pool):
    """x as the pool holds it: in float8 what is larger than 448 becomes 448, and NaN stays."""
    if pool.dtype.element_ty == tl.float8e4nv:
        x = tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))
    return x.to(pool.dtype.element_ty)


@triton.jit
def append(
    K, V, keys, values, slots, stride_kt, stride_kh, stride_vt, stride_vh, stride_s, stride_h,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program: token."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + t).to(tl.int64)
    h, d = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_D)[None, :]
    real = (h < HEADS) & (d < DIM)
    to = slot * stride_s + h * stride_h + d
    if slot >= 0:
        k = tl.load(K + t * stride_kt + h * stride_kh + d, mask=real, other=0.0)
        v = tl.load(V + t * stride_vt + h * stride_vh + d, mask=real, other=0.0)
        tl.store(keys + to, narrow(k, keys), mask=real)
        tl.store(values + to, narrow(v, values), mask=real)


@triton.jit
def put(to, pool, first, second, rest, DIM: tl.constexpr, TURNED: tl.constexpr,
        BLOCK: tl.constexpr, REST: tl.constexpr):  # fmt: skip
    """Write a head to ``to``, as ``pool`` holds it: two halves that turn, and the rest."""
    half = tl.arange(0, BLOCK)
    real = half < TURNED // 2
    tl.store(to + half, narrow(first, pool), mask=real)
    tl.store(to + TURNED // 2 + half, narrow(second, pool), mask=real)
    if TURNED < DIM:
        behind = TURNED + tl.arange(0, REST)
        tl.store(to + behind, narrow(rest, pool), mask=behind < DIM)


@triton.jit
def rotate_append(
    qkv, angles, positions, slots, q_norm, k_norm, Q, keys, values, eps, stride_x, stride_qt,
    stride_qh, stride_s, stride_h, QUERIES: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr,
    TURNED: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Program (token, head of qkv). The halves of a head, which turn with each other, are loaded
    apart: dimension ``i`` with ``i + TURNED / 2``. Dimensions from TURNED on do not turn."""
    t, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, BLOCK)
    real = half < TURNED // 2
    x = qkv + t * stride_x + head * DIM
    first = tl.load(x + half, mask=real, other=0.0).to(tl.float32)
    second = tl.load(x + TURNED // 2 + half, mask=real, other=0.0).to(tl.float32)
    behind = TURNED + tl.arange(0, REST)
    rest = tl.zeros([REST], tl.float32)
    if TURNED < DIM:
        rest = tl.load(x + behind, mask=behind < DIM, other=0.0).to(tl.float32)
    slot = tl.load(slots + t).to(tl.int64)
    if head >= QUERIES + KV:
        if slot >= 0:
            to = values + slot * stride_s + (head - QUERIES - KV) * stride_h
            put(to, values, first, second, rest, DIM, TURNED, BLOCK, REST)
    else:
        if NORM:
            gain = q_norm
            if head >= QUERIES:
                gain = k_norm
            square = tl.sum(first * first + second * second, 0) + tl.sum(rest * rest, 0)
            scale = 1.0 / tl.sqrt(square / DIM + eps)
            # Rounded as the unfused layer rounds what it hands to the rotation.
            type = qkv.dtype.element_ty
            low = tl.load(gain + half, mask=real, other=0.0).to(tl.float32)
            high = tl.load(gain + TURNED // 2 + half, mask=real, other=0.0).to(tl.float32)
            first = (first * scale * low).to(type).to(tl.float32)
            second = (second * scale * high).to(type).to(tl.float32)
            if TURNED < DIM:
                still = tl.load(gain + behind, mask=behind < DIM, other=0.0).to(tl.float32)
                rest = (rest * scale * still).to(type).to(tl.float32)
        at = angles + tl.load(positions + t).to(tl.int64) * (2 * TURNED) + half
        # cos is the same for both halves; the sine's first half is stored negated.
        cos = tl.load(at, mask=real, other=0.0).to(tl.float32)
        sin = tl.load(at + TURNED + TURNED // 2, mask=real, other=0.0).to(tl.float32)
        a, b = first * cos - second * sin, second * cos + first * sin
        if head < QUERIES:
            to = Q + t * stride_qt + head * stride_qh
            put(to, Q, a, b, rest, DIM, TURNED, BLOCK, REST)
        elif slot >= 0:
            to = keys + slot * stride_s + (head - QUERIES) * stride_h
            put(to, keys, a, b, rest, DIM, TURNED, BLOCK, REST)


@triton.jit
def normed(y, gain, eps, width, i, real):
    """RMSNorm of a row in registers, float32; ``i``: its columns, ``real`` those that there are."""
    scale = 1.0 / tl.sqrt(tl.sum(y * y, 0) / width + eps)
    return y * scale * tl.load(gain + i, mask=real, other=0.0).to(tl.float32)


@triton.jit
def norm(
    x, more, inner, weight, out, eps, width, BLOCK: tl.constexpr, ADD: tl.constexpr,
    INNER: tl.constexpr,
):  # fmt: skip
    """Program: row of ``width`` contiguous elements. ADD: ``more += x`` first, in place; INNER: to
    the RMSNorm of ``more``."""
    row = tl.program_id(0).to(tl.int64) * width
    i = tl.arange(0, BLOCK)
    real = i < width
    y = tl.load(x + row + i, mask=real, other=0.0).to(tl.float32)
    if ADD:
        z = tl.load(more + row + i, mask=real, other=0.0).to(tl.float32)
        if INNER:
            # Rounded as a norm by itself rounds what it hands on.
            z = normed(z, inner, eps, width, i, real).to(more.dtype.element_ty).to(tl.float32)
        stored = (y + z).to(more.dtype.element_ty)
        tl.store(more + row + i, stored, mask=real)
        # The norm is of the stored values, so that it agrees with the residual that later layers
        # read.
        y = stored.to(tl.float32)
    tl.store(
        out + row + i, normed(y, weight, eps, width, i, real).to(out.dtype.element_ty), mask=real
    )


@triton.jit
def activate(x, ACT: tl.constexpr):
    """silu, gelu (by the error function), gelu_tanh or relu of float32."""
    if ACT == "silu":
        y = x / (1.0 + tl.exp2(-x * LOG2E))
    elif ACT == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        # tanh(u) = 1 - 2 / (exp(2 u) + 1)
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        y = x * (1.0 - 1.0 / (tl.exp2(u * (2.0 * LOG2E)) + 1.0))
    else:
        y = tl.maximum(x, 0.0)
    return y


@triton.jit
def gate(x, out, width, stride_x, stride_o, BLOCK: tl.constexpr, ACT: tl.constexpr):
    """Program (row, block of columns)."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = i < width
    at = x + t * stride_x + i
    a = tl.load(at, mask=real, other=0.0).to(tl.float32)
    b = tl.load(at + width, mask=real, other=0.0).to(tl.float32)
    # The activation is rounded before the product, as where the two are separate.
    a = activate(a, ACT).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + t * stride_o + i, (a * b).to(out.dtype.element_ty), mask=real)
