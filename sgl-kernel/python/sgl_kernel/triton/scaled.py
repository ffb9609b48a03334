"""Products in float8 (e4m3; Micikevicius et al. 2022) with scales of groups of inputs.

    values float8 [rows, width], scales float32 [rows, ceil(width / group)]
    X[i, j] = values[i, j] * scales[i, j // group]

Activations are quantised as they come, one scale for each row's group; weights are as published
(DeepSeek-V3 technical report, section 3.3.2). Sums are float32.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sgl_kernel.triton import checks
from sgl_kernel.triton import scaled_kernels as kernels

MOST = 448.0  # the largest float8 (e4m3)
# A group is held in the registers of one program.
WIDEST = 65536


def quantise(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Values and scales of x [T, width], any float dtype, its last dimension contiguous. The
    largest value of each group becomes 448. Raises ValueError."""
    checks.shape("x", x, None, None)
    checks.dtype("x", x, *checks.FLOATS)
    rows, width = x.shape
    if not 1 <= group <= WIDEST:
        checks.fail(f"group is {group}; it must be between 1 and {WIDEST}")
    parts = triton.cdiv(width, group)
    values = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, parts, dtype=torch.float32, device=x.device)
    if rows:
        kernels.quantise[(rows, parts)](
            x, values, scales, width, group, x.stride(0), MOST=MOST,
            BLOCK=triton.next_power_of_2(min(group, width)), num_warps=4,
        )  # fmt: skip
    return values, scales


def product(
    x: Tensor, x_scales: Tensor, weight: Tensor, weight_scales: Tensor, group: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """X W^T in ``dtype``, [T, outputs], of X [T, width] and W [outputs, width], all contiguous.
    ``group``: inputs that share a scale, a multiple of 32, or ``width`` or more. Raises
    ValueError."""
    rows, width = x.shape
    outputs, groups = weight.shape[0], triton.cdiv(width, group)
    for name, tensor, shape in (
        ("x", x, (None, None)), ("x_scales", x_scales, (rows, groups)),
        ("weight", weight, (None, width)), ("weight_scales", weight_scales, (outputs, groups)),
    ):  # fmt: skip
        checks.shape(name, tensor, *shape)
        if not tensor.is_contiguous():
            checks.fail(f"{name} must be contiguous")
    checks.dtype("x", x, torch.float8_e4m3fn)
    checks.dtype("weight", weight, torch.float8_e4m3fn)
    if group < width and group % 32:
        checks.fail(f"group is {group}; it must be a multiple of 32")
    step = next(n for n in (128, 64, 32) if groups == 1 or group % n == 0)
    out = torch.empty(rows, outputs, dtype=dtype, device=x.device)
    if rows and outputs:
        tile = 16 if rows <= 16 else 64
        kernels.product[(triton.cdiv(rows, tile), triton.cdiv(outputs, 64))](
            x, x_scales, weight, weight_scales, out, rows, outputs, width, group, groups,
            BLOCK_M=tile, BLOCK_N=64, BLOCK_K=step, num_warps=4, num_stages=3,
        )  # fmt: skip
    return out
