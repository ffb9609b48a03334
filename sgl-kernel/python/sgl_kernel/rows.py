"""Row by row on a CPU: RMSNorm, gated activations, sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sgl_kernel.native import need
from sgl_kernel.packed import ACTIVATIONS

# The native record of a sampled token's parameters.
DRAW = np.dtype(
    [("temperature", "f4"), ("top_p", "f4"), ("min_p", "f4"), ("top_k", "i4"), ("uniform", "f8"),
     ("mask", "u8")],
    align=True,
)  # fmt: skip
NOTHING, NOT_FINITE = -1, -2  # in place of a token


def _shape(x: Tensor) -> tuple[int, int]:
    """Raises ValueError where native code cannot read ``x``."""
    if x.ndim != 2 or x.dtype != torch.float32 or x.device.type != "cpu":
        raise ValueError(f"{x.dtype} {tuple(x.shape)} on {x.device}; float32 [m, n] on the CPU.")
    if x.shape[1] > 1 and x.stride(1) != 1:
        raise ValueError(f"rows with strides {x.stride()}; numbers side by side are needed.")
    return x.shape[0], x.shape[1]


def norm(x: Tensor, gain: Tensor, eps: float, threads: int = 1) -> Tensor:
    """``x * rsqrt(mean(x^2) + eps) * gain`` (Zhang and Sennrich 2019); x [m, n] float32, gain
    [n]."""
    m, n = _shape(x)
    if gain.shape != (n,):
        raise ValueError(f"gain has shape {tuple(gain.shape)}; [{n}] is needed.")
    out, gain = torch.empty(m, n), gain.float().contiguous()
    need().norm(threads, gain.data_ptr(), eps, x.data_ptr(), x.stride(0), m, n, out.data_ptr(), n)
    return out


def gate(x: Tensor, act: str, threads: int = 1) -> Tensor:
    """``act(x[:, :n]) * x[:, n:]`` of x [m, 2 n] float32 -> [m, n]."""
    m, n = _shape(x)
    n //= 2
    out = torch.empty(m, n)
    need().gate(threads, ACTIVATIONS[act], x.data_ptr(), x.stride(0), m, n, out.data_ptr(), n)
    return out


def draw(
    logits: Tensor, draws: np.ndarray[tuple[int], np.dtype[np.void]], threads: int = 1
) -> Tensor:
    """One token a row of logits [m, n] float32; ``draws`` [m] of ``DRAW``, whose masks are
    addresses of uint32 words that live on (0: every token is allowed). int32 [m]; ``NOTHING`` where
    no token is allowed, ``NOT_FINITE`` where a logit is NaN or infinite."""
    m, n = _shape(logits)
    if draws.dtype != DRAW or draws.shape != (m,):
        raise ValueError(f"draws are {draws.dtype} {draws.shape}; [{m}] of DRAW are needed.")
    tokens = torch.empty(m, dtype=torch.int32)
    address = int(draws.__array_interface__["data"][0])
    if not need().draw(
        threads, logits.data_ptr(), logits.stride(0), m, n, address, tokens.data_ptr()
    ):
        raise MemoryError(f"no memory to draw from {n} tokens.")
    return tokens


def draws(
    temperature: Sequence[float], top_k: Sequence[int], top_p: Sequence[float],
    min_p: Sequence[float], uniform: Sequence[float],
) -> np.ndarray[tuple[int], np.dtype[np.void]]:  # fmt: skip
    """Records without masks. Temperature 0 is greedy; top_k < 1, top_p >= 1 and min_p <= 0 cut
    nothing."""
    out = np.zeros(len(temperature), DRAW)
    out["temperature"], out["top_k"], out["top_p"] = temperature, top_k, top_p
    out["min_p"], out["uniform"] = min_p, uniform
    return out
