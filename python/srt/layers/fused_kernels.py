"""Fused kernels: the operations of ``layers.operations`` as launches of ``sgl_kernel.triton``.

A kernel computes in float32 and rounds its intermediate results like the separate operations,
except for the products within a rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sgl_kernel.triton import append as appending
from sgl_kernel.triton import norm as kernels
from sglang.srt.attention.attention_protocol import KVTarget
from sglang.srt.layers.activations import gated
from sglang.srt.layers.rotary import AngleRows
from sglang.srt.numeric.torch_later import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See ``operations.rms_norm``."""
    out: Tensor = kernels.rms_norm(x.contiguous(), weight, eps)
    return out


def add_norm(
    x: Tensor, more: Tensor, weight: Tensor, eps: float, inner: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See ``operations.add_norm``; the sum overwrites ``more``."""
    return more, kernels.add_rms_norm(x, more, weight, eps, inner)


def gate(x: Tensor, act: str) -> Tensor:
    """See ``activations.gated``, which is called for activations that the kernel does not have."""
    if act not in kernels.ACTIVATIONS:
        return gated(x, act)
    out: Tensor = kernels.gate(x, act)
    return out


def rotate_append(
    qkv: Tensor,
    heads: int,
    gains: tuple[Tensor, Tensor, float] | None,
    angles: AngleRows,
    target: KVTarget,
) -> Tensor:
    """See ``operations.RotateAppend``."""
    q_norm, k_norm, eps = gains or (None, None, 0.0)
    out: Tensor = appending.rotate_append(
        qkv, angles.table, angles.rows, *target, heads=heads, q_norm=q_norm, k_norm=k_norm, eps=eps
    )
    return out


# Fields of ``Operations`` and their kernels, by the names of ``--disable-fused-kernels``.
KERNELS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "rotate_append": {"rotate_append": rotate_append},
    "add_rms_norm": {"norm": norm, "add_norm": add_norm},
    "gate": {"gate": gate},
}
