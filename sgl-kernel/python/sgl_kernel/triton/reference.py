"""Results of the kernels by definition: loops and float64, on any device. For tests."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, tables: Tensor, starts: Tensor,
    firsts: Tensor, *, scale: float, page_size: int = 1, window: int = 0, soft_cap: float = 0.0,
    sinks: Tensor | None = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``attention.extend`` in float64 [T, heads, head_dim], zeros for queries of no row."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group = q.shape[1] // keys.shape[1]
    for r, start in enumerate(starts.tolist()):
        first, last = int(firsts[r]), int(firsts[r + 1])
        place = torch.arange(start + last - first, device=q.device)
        page = pages[int(tables[r]) + place // page_size].long()
        slots = page * page_size + place % page_size
        k = keys[slots].double().repeat_interleave(group, 1)
        v = values[slots].double().repeat_interleave(group, 1)
        for t in range(first, last):
            position = start + t - first
            seen = place <= position
            if mask is not None:
                new = (place - start).clamp(min=0)
                bits = (mask[t].long()[new // 32] >> (new % 32)) & 1
                seen = (place < start) | (bits == 1)
            if window:
                seen &= place > position - window
            score = torch.einsum("hd,shd->hs", q[t].double(), k) * scale
            if soft_cap:
                score = soft_cap * torch.tanh(score / soft_cap)
            score = score.masked_fill(~seen, float("-inf"))
            if sinks is not None:
                score = torch.cat([score, sinks.double()[:, None]], 1)
            weight = score.softmax(-1)[:, : len(place)]
            out[t] = torch.einsum("hs,shd->hd", weight, v)
    return out


def append(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """``append.append``."""
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            keys[slot], values[slot] = k[t].to(keys.dtype), v[t].to(values.dtype)


def rotate_append(
    qkv: Tensor, angles: Tensor, positions: Tensor, keys: Tensor, values: Tensor, slots: Tensor, *,
    heads: int, q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """``append.rotate_append``; pools and result are best float64."""
    kv, dim = keys.shape[1:]
    wide = qkv.to(torch.float64, copy=True).view(len(qkv), -1, dim)
    q, k, v = wide.split((heads, kv, kv), 1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    turned = angles.shape[-1]
    cos, sin = angles.double().view(-1, 2, 1, turned)[positions.long()].unbind(1)
    for x in (q, k):
        turning = x[..., :turned]
        x[..., :turned] = turning * cos + turning.roll(turned // 2, -1) * sin
    append(k, v, keys, values, slots)
    return q


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``norm.rms_norm`` in float64."""
    y = x.double()
    return y / (y.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def activate(x: Tensor, activation: str) -> Tensor:
    if activation in ("silu", "swish"):
        return torch.nn.functional.silu(x)
    if activation == "relu":
        return x.relu()
    return torch.nn.functional.gelu(x, approximate="none" if activation == "gelu" else "tanh")


def gate(x: Tensor, activation: str) -> Tensor:
    """``norm.gate`` in float64."""
    a, b = x.double().chunk(2, -1)
    if activation == "clamped_swiglu":
        a, b = a.clamp(max=7.0), b.clamp(-7.0, 7.0) + 1.0
        return a * (1.702 * a).sigmoid() * b
    return activate(a, activation) * b


def route(logits: Tensor, top_k: int, renormalise: bool = True) -> tuple[Tensor, Tensor]:
    """``moe.route`` in float64."""
    weights, chosen = torch.sort(logits.double().softmax(-1), dim=-1, descending=True, stable=True)
    weights, chosen = weights[:, :top_k], chosen[:, :top_k]
    return weights / weights.sum(-1, keepdim=True) if renormalise else weights, chosen.int()


def fused_moe(
    x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor, activation: str,
    gate_up_bias: Tensor | None = None, down_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``moe.fused_moe`` in float64, a token and a choice at a time."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for t, choices in enumerate(experts.tolist()):
        for i, e in enumerate(choices):
            middle = gate_up[e].double() @ x[t].double()
            middle += 0.0 if gate_up_bias is None else gate_up_bias[e].double()
            y = down[e].double() @ gate(middle.unsqueeze(0), activation)[0]
            y += 0.0 if down_bias is None else down_bias[e].double()
            out[t] += weights[t, i].double() * y
    return out


def distribution(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> Tensor:
    """The distribution that ``sampling.sample`` samples from, for one row [vocab], by sorting;
    float64."""
    x = logits.double() / temperature
    if 0 < top_k < len(x):
        x = x.masked_fill(x < x.sort(descending=True).values[top_k - 1], float("-inf"))
    if top_p < 1.0:
        values = x.sort(descending=True).values
        mass = values.softmax(-1)
        last = int((mass.cumsum(-1) - mass < top_p).sum()) - 1
        x = x.masked_fill(x < values[max(last, 0)], float("-inf"))
    if min_p > 0.0:
        x = x.masked_fill(x < x.max() + torch.tensor(min_p).double().log(), float("-inf"))
    return x.softmax(-1)


def sample(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> int:
    """``sampling.sample`` for one row [vocab] of finite or -inf logits, not all -inf."""
    if not temperature:
        return int((logits == logits.max()).nonzero()[0])
    share = distribution(logits, temperature, top_k, top_p, min_p)
    cumulated = share.cumsum(-1).masked_fill(share == 0.0, 0.0)
    total = cumulated.max()
    goal = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    return int((cumulated > goal).nonzero()[0])


def dequantised(values: Tensor, scales: Tensor, group: int) -> Tensor:
    """The float64 matrix that float8 values and their scales stand for; see ``scaled``."""
    parts = scales.double().repeat_interleave(group, 1)[:, : values.shape[1]]
    return values.float().double() * parts
