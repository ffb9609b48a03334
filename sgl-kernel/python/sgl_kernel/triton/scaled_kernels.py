"""Triton kernels of ``scaled``."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quantise(x, values, scales, width, group, x_row, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """One program for a row's group of columns."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = part * group + tl.arange(0, BLOCK)
    inside = (tl.arange(0, BLOCK) < group) & (columns < width)
    own = tl.load(x + row * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(own), axis=0), 1e-12) / MOST
    scaled = tl.minimum(tl.maximum(own / scale, -MOST), MOST)
    tl.store(values + row * width + columns, scaled.to(values.dtype.element_ty), mask=inside)
    tl.store(scales + row * tl.num_programs(1) + part, scale)


@triton.jit(do_not_specialize=["rows"])
def product(
    x, x_scales, weight, weight_scales, out, rows, outputs, width, group, groups,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program for a tile of outputs. ``BLOCK_K`` divides ``group``, so a step has one scale."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows, in_outputs = row < rows, output < outputs
    x_at = x + row.to(tl.int64)[:, None] * width
    weight_at = weight + output.to(tl.int64)[None, :] * width
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, width, BLOCK_K):
        column = first + tl.arange(0, BLOCK_K)
        inside = column < width
        a = tl.load(x_at + column[None, :], mask=in_rows[:, None] & inside[None, :], other=0.0)
        b = tl.load(
            weight_at + column[:, None], mask=in_outputs[None, :] & inside[:, None], other=0.0
        )
        part = first // group
        by_row = tl.load(x_scales + row * groups + part, mask=in_rows, other=0.0)
        by_output = tl.load(weight_scales + output * groups + part, mask=in_outputs, other=0.0)
        sums += tl.dot(a, b) * by_row[:, None] * by_output[None, :]
    at = out + row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(at, sums.to(out.dtype.element_ty), mask=in_rows[:, None] & in_outputs[None, :])
