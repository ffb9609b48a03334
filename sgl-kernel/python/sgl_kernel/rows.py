"""Row by row on a CPU: RMSNorm, gated activations, log-probabilities, sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sgl_kernel.arrays import (
    AnyArray,
    address,
    described,
    dtype_name,
    empty,
    empty_int32,
    floats,
    on_cpu,
    stride,
)
from sgl_kernel.native import need
from sgl_kernel.packed import ACTIVATIONS

# The native record of a sampled token's parameters.
DRAW = np.dtype(
    [("temperature", "f4"), ("top_p", "f4"), ("min_p", "f4"), ("top_k", "i4"), ("uniform", "f8"),
     ("mask", "u8")],
    align=True,
)  # fmt: skip
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
NOTHING, NOT_FINITE = -1, -2  # in place of a token


def _shape(x: AnyArray) -> tuple[int, int]:
    """Raises ValueError where native code cannot read ``x``."""
    if x.ndim != 2 or dtype_name(x) != "float32" or not on_cpu(x):
        raise ValueError(f"{described(x)}; float32 [m, n] on the CPU is needed.")
    if x.shape[1] > 1 and stride(x, 1) != 1:
        raise ValueError(f"rows with stride {stride(x, 1)}; numbers side by side are needed.")
    return x.shape[0], x.shape[1]


def norm(x: AnyArray, gain: AnyArray, eps: float, threads: int = 1) -> AnyArray:
    """``x * rsqrt(mean(x^2) + eps) * gain`` (Zhang and Sennrich 2019); x [m, n] float32, gain
    [n]."""
    m, n = _shape(x)
    if gain.shape != (n,):
        raise ValueError(f"gain has shape {tuple(gain.shape)}; [{n}] is needed.")
    out, gain = empty(x, m, n), floats(gain)
    need().norm(threads, address(gain), eps, address(x), stride(x), m, n, address(out), n)
    return out


def gate(x: AnyArray, act: str, threads: int = 1) -> AnyArray:
    """``act(x[:, :n]) * x[:, n:]`` of x [m, 2 n] float32 -> [m, n]."""
    m, n = _shape(x)
    n //= 2
    out = empty(x, m, n)
    need().gate(threads, ACTIVATIONS[act], address(x), stride(x), m, n, address(out), n)
    return out


def log_sums(
    logits: Floats, threads: int = 1
) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The largest of each row of logits, float32 [m, n], and the logarithm of the sum of
    ``exp(logit - largest)``: float32 and float64 [m]. A log-probability is ``logit - largest -
    sum``. The sum is NaN where a logit is NaN or +inf, and where all are -inf. Raises ValueError
    for an array that is not float32 or has no columns."""
    m, n = _shape(logits)
    if n < 1:
        raise ValueError(f"{described(logits)}; at least one column is needed.")
    largest, sums = np.empty(m, np.float32), np.empty(m, np.float64)
    need().log_sums(threads, address(logits), stride(logits), m, n, address(largest), address(sums))
    return largest, sums


def draw(
    logits: AnyArray, draws: np.ndarray[tuple[int], np.dtype[np.void]], threads: int = 1
) -> AnyArray:
    """Sample one token for each row of logits, float32 [m, n].

    ``draws``: [m] of ``DRAW``. Their masks are addresses of uint32 words, one bit a token, that
    must stay alive; 0: every token is allowed. Returns int32 [m]: ``NOTHING`` where no token is
    allowed, ``NOT_FINITE`` where a logit is NaN or infinite. Raises ValueError for other records,
    MemoryError.
    """
    m, n = _shape(logits)
    if draws.dtype != DRAW or draws.shape != (m,):
        raise ValueError(f"draws are {draws.dtype} {draws.shape}; [{m}] of DRAW are needed.")
    tokens = empty_int32(logits, m)
    if not need().draw(
        threads, address(logits), stride(logits), m, n, address(draws), address(tokens)
    ):
        raise MemoryError(f"no memory to draw from {n} tokens.")
    return tokens


def draws(
    temperature: Sequence[float], top_k: Sequence[int], top_p: Sequence[float],
    min_p: Sequence[float], uniform: Sequence[float],
) -> np.ndarray[tuple[int], np.dtype[np.void]]:  # fmt: skip
    """Records [m] of ``DRAW`` for ``draw``, without masks. Temperature 0 is greedy; top_k < 1,
    top_p >= 1 and min_p <= 0 cut nothing. ``uniform``: random numbers in [0, 1)."""
    out = np.zeros(len(temperature), DRAW)
    out["temperature"], out["top_k"], out["top_p"] = temperature, top_k, top_p
    out["min_p"], out["uniform"] = min_p, uniform
    return out
