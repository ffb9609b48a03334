"""RMSNorm (Zhang and Sennrich 2019) with the residual add before it, and gated activations."""

from __future__ import annotations

import triton
from torch import Tensor

from sgl_kernel.triton import checks
from sgl_kernel.triton import layer_kernels as kernels

# A row is held in the registers of one program.
WIDEST = 65536

# Names of activations as checkpoints spell them.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, float32 inside.

    x: [..., width] contiguous. weight: [width]. Returns x's shape and dtype. Raises ValueError.
    """
    _rows(x, weight)
    out = checks.output(out, x, *x.shape)
    _launch(x, None, None, weight, out, eps)
    return out


def add_rms_norm(
    x: Tensor, more: Tensor, weight: Tensor, eps: float, inner: Tensor | None = None
) -> Tensor:
    """``more += x`` in place, then the RMSNorm of the sum as it is stored, a new tensor.

    x, more: [..., width] contiguous, of one shape and dtype. inner: [width]; x is added to the
    RMSNorm of ``more`` by these gains (Gemma 2). Raises ValueError.
    """
    _rows(x, weight)
    checks.shape("more", more, *x.shape)
    checks.dtype("more", more, x.dtype)
    checks.same_device(x, more=more, inner=inner)
    if inner is not None:
        checks.shape("inner", inner, x.shape[-1])
    if not more.is_contiguous():
        checks.fail("more must be contiguous: it is changed in place")
    out = x.new_empty(x.shape)
    _launch(x, more, inner, weight, out, eps)
    return out


def gate(x: Tensor, activation: str, out: Tensor | None = None) -> Tensor:
    """act(x[:, :F]) * x[:, F:] for x [T, 2 F] -> [T, F]; GLU variants (Shazeer 2020).

    activation: a key of ``ACTIVATIONS``. Raises ValueError.
    """
    checks.shape("x", x, None, None)
    checks.dtype("x", x, *checks.FLOATS)
    if activation not in ACTIVATIONS:
        checks.fail(f"activation is {activation!r}; one of {', '.join(ACTIVATIONS)} is needed")
    if x.shape[1] % 2:
        checks.fail(f"x has {x.shape[1]} columns; gates and values need an even number")
    width = x.shape[1] // 2
    out = checks.output(out, x, x.shape[0], width)
    block = min(1024, triton.next_power_of_2(width))
    if x.shape[0]:
        kernels.gate[(x.shape[0], triton.cdiv(width, block))](
            x, out, width, x.stride(0), out.stride(0), BLOCK=block, ACT=ACTIVATIONS[activation],
            num_warps=4,
        )  # fmt: skip
    return out


def _rows(x: Tensor, weight: Tensor) -> None:
    checks.dtype("x", x, *checks.FLOATS)
    checks.shape("weight", weight, x.shape[-1])
    checks.same_device(x, weight=weight)
    if not x.is_contiguous():
        checks.fail(f"x must be contiguous; its strides are {x.stride()}")
    if x.shape[-1] > WIDEST:
        checks.fail(f"x has {x.shape[-1]} columns; at most {WIDEST} are supported")


def _launch(
    x: Tensor, more: Tensor | None, inner: Tensor | None, weight: Tensor, out: Tensor, eps: float
) -> None:
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    if x.numel():
        kernels.norm[(x.numel() // width,)](
            x, more, inner, weight, out, eps, width, BLOCK=block, ADD=more is not None,
            INNER=inner is not None, num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
