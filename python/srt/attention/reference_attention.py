"""Attention by definition, one query at a time. Tests compare all implementations with it."""

from __future__ import annotations

import math

from sglang.srt.attention.attention_protocol import Heads, Layout
from sglang.srt.numeric.torch_later import Tensor, torch


def slots_of(layout: Layout, row: int, page_size: int) -> list[int]:
    """Return the pool slots of a row's positions ``0 .. start + count - 1``."""
    table = layout.pages[layout.tables[row] : layout.tables[row + 1]].tolist()
    length = int(layout.starts[row] + layout.counts[row])
    return [table[p // page_size] * page_size + p % page_size for p in range(length)]


def attend(
    heads: Heads,
    layout: Layout,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    key_pool: Tensor,
    value_pool: Tensor,
    page_size: int,
) -> Tensor:
    """Compute softmax(q k^T * scale) v ("Attention is all you need", eq. 1) in float64.

    Writes ``k`` and ``v`` to the pools [slots, num_kv_heads, head_dim or value_dim]; shapes
    otherwise as in ``Attention.attend``. Without ``v``, ``value_pool`` is ignored. Query
    head ``h`` reads key head ``h // (num_heads / num_kv_heads)``.
    """
    flat = 0
    for row, count in enumerate(layout.counts.tolist()):
        for slot in slots_of(layout, row, page_size)[-count:]:
            key_pool[slot] = k[flat]
            if v is not None:
                value_pool[slot] = v[flat]
            flat += 1
    if v is None:
        value_pool = key_pool[..., : heads.value_dim]
    out = torch.empty(*q.shape[:2], heads.value_dim, dtype=torch.float64)
    flat, group = 0, heads.num_heads // heads.num_kv_heads
    for row, count in enumerate(layout.counts.tolist()):
        slots = slots_of(layout, row, page_size)
        for position in range(len(slots) - count, len(slots)):
            first = max(0, position - heads.window + 1) if heads.window else 0
            seen = slots[first : position + 1]
            for h in range(heads.num_heads):
                keys = key_pool[seen, h // group].double().cpu()
                values = value_pool[seen, h // group].double().cpu()
                scores = [math.fsum((key * q[flat, h].double().cpu()).tolist()) for key in keys]
                scaled = torch.tensor(scores).double() * heads.scale
                if heads.soft_cap:
                    scaled = heads.soft_cap * torch.tanh(scaled / heads.soft_cap)
                if heads.sinks is not None:
                    scaled = torch.cat([scaled, heads.sinks[h].double().cpu().view(1)])
                weights = torch.softmax(scaled, 0)[: len(seen)]
                out[flat, h] = weights @ values
            flat += 1
    return out.flatten(1)
