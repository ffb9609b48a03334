"""Plain torch versions of the native kernels, for any float dtype: the reference of their tests.

The reference of attention over pages is ``sglang.srt.attention.reference_attention``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl_kernel.experts import Routing

ACTS = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """``x * rsqrt(mean(x^2) + eps) * gain`` over the last dimension."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gain


def gate(x: Tensor, act: str) -> Tensor:
    """``act(x[:, :n]) * x[:, n:]`` of x [m, 2 n]; GPT-OSS's gate as its code has it."""
    left, right = x.chunk(2, dim=-1)
    if act == "clamped_swiglu":
        left, right = left.clamp(max=7), right.clamp(-7, 7)
        return (right + 1) * (left * torch.sigmoid(left * 1.702))
    return ACTS[act](left) * right


def quantise_rows(w: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values [n, k] and one scale a row [n, 1]: symmetric, the largest value becomes 127."""
    scale = w.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return (w / scale).round().clamp(-127, 127), scale


def linear(
    x: Tensor,
    w: Tensor,
    format: str = "f32",
    *,
    bias: Tensor | None = None,
    gain: Tensor | None = None,
    eps: float = 1e-6,
    paired: bool = False,
    act: str = "silu",
) -> Tensor:
    """``norm(x) W^T + bias`` as ``packed.linear``, for formats whose weights need no search."""
    if gain is not None:
        x = norm(x, gain, eps)
    if format == "bf16":
        x, w = (t.bfloat16().to(t.dtype) for t in (x, w))
    if format == "w8a8":
        x, x_scale = quantise_rows(x)
        w, w_scale = quantise_rows(w)
        y = (x.double() @ w.double().T).to(x.dtype) * x_scale * w_scale.T
    else:
        y = x @ w.T
    if bias is not None:
        y = y + bias
    return gate(y, act) if paired else y


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x [T, heads, dim] at positions [T].

    Of the first ``n = 2 * cos.shape[1]`` dimensions, i is rotated with i + n / 2.
    """
    half = cos.shape[1]
    c, s = cos[positions].unsqueeze(1).to(x.dtype), sin[positions].unsqueeze(1).to(x.dtype)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)


def attend(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int = 0, soft_cap: float = 0.0
) -> Tensor:
    """One row: the last queries q [n, heads, dim] of a sequence see its keys and values
    [length, kv_heads, dim] causally."""
    n, length, group = q.shape[0], keys.shape[0], q.shape[1] // keys.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (keys, values))
    scores = torch.einsum("nhd,lhd->hnl", q, k) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    at = torch.arange(length - n, length).unsqueeze(1)
    seen = torch.arange(length) <= at
    if window:
        seen &= torch.arange(length) > at - window
    scores = scores.masked_fill(~seen, -math.inf)
    return torch.einsum("hnl,lhd->nhd", scores.softmax(-1), v)


def route(logits: Tensor, rule: Routing) -> list[tuple[int, float]]:
    """Experts of one token and their weights, in the order in which they are chosen, by sorting."""
    scores = (logits.sigmoid() if rule.sigmoid else logits.softmax(0)).tolist()
    bias = [0.0] * len(scores) if rule.bias is None else rule.bias.tolist()
    merits = [score + more for score, more in zip(scores, bias)]
    size = rule.experts // rule.groups
    runs = [range(i, i + size) for i in range(0, rule.experts, size)]

    def best(numbers: Sequence[int], worth: Sequence[float], count: int) -> list[int]:
        return sorted(numbers, key=lambda i: (-worth[i], i))[:count]

    sums = [sum(merits[e] for e in best(run, merits, rule.group_best)) for run in runs]
    among = [e for g in best(range(rule.groups), sums, rule.kept) for e in runs[g]]
    chosen = best(among, merits, rule.top_k)
    total = sum(scores[e] for e in chosen) if rule.renormalise else 1.0
    return [(e, scores[e] / total * rule.scale) for e in chosen]


def experts(
    x: Tensor,
    rule: Routing,
    router: Tensor,
    gate_up: Sequence[Tensor],
    down: Sequence[Tensor],
    act: str = "silu",
    router_bias: Tensor | None = None,
    gate_up_bias: Sequence[Tensor | None] | None = None,
    down_bias: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """``experts.Experts`` over plain matrices [n, k], a token and an expert at a time."""
    n, y = rule.experts, torch.zeros_like(x)

    def one(e: int, row: Tensor) -> Tensor:
        inner = gate_up[e] @ row
        if gate_up_bias is not None and (bias := gate_up_bias[e]) is not None:
            inner = inner + bias
        out = down[e] @ gate(inner.unsqueeze(0), act)[0]
        if down_bias is not None and (bias := down_bias[e]) is not None:
            out = out + bias
        return out

    for t, row in enumerate(x):
        logits = router @ row + (0 if router_bias is None else router_bias)
        for e, weight in route(logits[:n], rule):
            y[t] += weight * one(e, row)
        if len(gate_up) > n:
            y[t] += (logits[n].sigmoid() if len(router) > n else 1.0) * one(n, row)
    return y
