"""Operations: a layer's computations between its products, by torch or by fused kernels.

    norm            RMSNorm
    add_norm        an addition to the residual stream, and the norms before and after it
    gate            ``act(gate) * up``
    rotate_append   norms of heads, rotation, and the write of new keys and values to their pools

A model is built with one set of operations (``weight.Place.operations``): ``TORCH`` on a CPU, the
choice of ``operations_of`` on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from sglang.srt.attention.attention_protocol import KVTarget
from sglang.srt.attention.backend_choice import triton_lacks
from sglang.srt.layers.activations import gated
from sglang.srt.layers.rotary import AngleRows
from sglang.srt.numeric.torch_later import F, Tensor, torch

log = logging.getLogger("sglang.srt.layers")


# RMSNorm per head of q and k before the rotation: gains of q and of k [head_dim], and eps.
HeadGains: TypeAlias = tuple[Tensor, Tensor, float]


# ``add_norm`` below.
AddNorm: TypeAlias = Callable[[Tensor, Tensor, Tensor, float, Tensor | None], tuple[Tensor, Tensor]]


class RotateAppend(Protocol):
    """A kernel for all operations between a layer's first product and its attention."""

    def __call__(
        self, qkv: Tensor, heads: int, gains: HeadGains | None, angles: AngleRows, target: KVTarget
    ) -> Tensor:
        """Return the rotated queries [T, heads, head_dim] of qkv [T, (heads + 2 kv_heads) *
        head_dim]. Write the rotated keys and the values to ``target``."""
        ...


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in x's dtype. A
    float32 weight is not rounded to a narrower dtype of x: only the result is."""
    if weight.dtype == torch.float32 and x.dtype != torch.float32:
        return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def add_norm(
    x: Tensor, more: Tensor, weight: Tensor, eps: float, inner: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``x + more`` and its RMSNorm. ``inner``: gains that norm ``more`` before the sum."""
    total = x + (more if inner is None else rms_norm(more, inner, eps))
    return total, rms_norm(total, weight, eps)


@dataclass(frozen=True)
class Operations:
    """Functions with the contracts of ``rms_norm``, ``add_norm`` and ``activations.gated``.

    ``add_norm`` may overwrite its second argument. ``rotate_append``: None if norms, rotation and
    write are separate operations.
    """

    norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    add_norm: AddNorm = add_norm
    gate: Callable[[Tensor, str], Tensor] = gated
    rotate_append: RotateAppend | None = None


TORCH = Operations()


def operations_of(device: torch.device, disabled: Collection[str] = ()) -> Operations:
    """Return and log the operations for ``device``: fused kernels if they can run, without those
    whose names (``fused_kernels.KERNELS``) are ``disabled``."""
    if lacks := triton_lacks(device):
        if device.type == "cuda":
            log.info("no fused kernels: %s", lacks)
        return TORCH
    from sglang.srt.layers.fused_kernels import KERNELS

    chosen = [name for name in KERNELS if name not in disabled]
    log.info("fused kernels: %s", ", ".join(chosen) or "none")
    operations = TORCH
    for name in chosen:
        operations = replace(operations, **KERNELS[name])
    return operations
