"""Self-check: compares an attention implementation with plain torch on small passes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import torch
from sglang.srt.attention.attention_protocol import Attention, Heads, KVShape, Layout
from sglang.srt.attention.native_attention import NativeAttention
from torch import Tensor

# Rows of the pass: (earlier tokens, new tokens). A prompt; a chunk of a prompt, whose keys span
# several tiles; a decode step.
ROWS = ((0, 70), (130, 9), (40, 1))
# Allowed norm of the error, relative to the output's. Two bfloat16 roundings are 0.4 % each.
TOLERANCE = 0.02


def check(
    build: Callable[[list[Tensor], list[Tensor]], Attention],
    heads: int,
    kv: KVShape,
    windows: tuple[int, ...],
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raise ValueError if an implementation differs from ``NativeAttention`` in float32.

    ``build`` makes the implementation over key and value pools of one layer, [slots, kv heads,
    head_dim]. ``heads``: query heads. ``windows``: windows of the model's layers; each is tried.
    """
    layout, pages = _layout(page_size)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        """Return normal values, rounded to ``dtype``."""
        return torch.randn(shape, generator=generator).to(dtype)

    keys, values = (random(pages * page_size + 1, kv.heads, kv.key_dim) for _ in range(2))
    for pool in (keys, values):
        pool[-1] = 0
    tokens = int(layout.counts.sum())
    q = random(tokens, heads, kv.key_dim)
    k, v = (random(tokens, kv.heads, kv.key_dim) for _ in range(2))
    for window in sorted(set(windows)):
        layer = Heads(0, heads, kv.heads, kv.key_dim, kv.key_dim**-0.5, window)
        reference = NativeAttention([keys.float()], [values.float()], page_size, (window,))
        reference.plan(layout)
        want = reference.attend(layer, q.float(), k.float(), v.float())
        tested = build([keys.to(device, copy=True)], [values.to(device, copy=True)])
        tested.plan(layout)
        got = tested.attend(layer, q.to(device), k.to(device), v.to(device)).float().cpu()
        error = float((got - want).norm() / want.norm())
        if not error <= TOLERANCE:  # NaN fails too
            raise ValueError(
                f"its outputs differ from the reference by {error:.1%} of their norm (window "
                f"{window}); {TOLERANCE:.0%} are allowed"
            )


def _layout(page_size: int) -> tuple[Layout, int]:
    """Return the layout of ``ROWS`` on shuffled pages, and the number of pages."""
    starts, counts = (np.array(part, dtype=np.int32) for part in zip(*ROWS))
    sizes = [-(-(start + count) // page_size) for start, count in ROWS]
    pages = np.random.default_rng(0).permutation(sum(sizes)).astype(np.int32)
    tables = np.array([0, *accumulate(sizes)], dtype=np.int32)
    positions = np.concatenate([np.arange(a, a + n, dtype=np.int32) for a, n in ROWS])
    return Layout(starts, counts, tables, pages, positions), sum(sizes)
