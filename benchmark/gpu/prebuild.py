"""Prebuild: FlashInfer's kernels, compiled by a first use: ``python -m benchmark.gpu.prebuild``.

A module is compiled for each size of heads and kind of pass, a minute or more each, at its first
use. Compiled ones are kept on disk. Heads of 128 come first: the 8 B model has them.
"""

from __future__ import annotations

import sys
import time

import torch
from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.attention.backend_choice import build, choose

from benchmark.gpu.attention import Case, HeadsShape, decode, layout_of

NAME = "flashinfer"
CASES = (
    decode("2 x 9", 2, 9), Case("extend 2 x 5", ((0, 5),) * 2),
    decode("2 x 200 of 150", 2, 200, common=150),
)  # fmt: skip


def prebuild(dim: int, device: torch.device, dtype: torch.dtype) -> None:
    """Use every kind of pass once with heads of ``dim``. Raises ValueError where FlashInfer cannot
    run."""
    shape = HeadsShape(32, 8, dim)
    choose(NAME, device, shape, dtype)
    pools = [torch.zeros(512, shape.num_kv_heads, dim, dtype=dtype, device=device) for _ in "kv"]
    attention = build(NAME, pools[:1], pools[1:], 1, shape)
    heads = Heads(0, shape.num_heads, shape.num_kv_heads, dim, dim**-0.5)
    for case in CASES:
        began = time.perf_counter()
        attention.plan(layout_of(case))
        q, k, v = (
            torch.zeros(case.tokens, n, dim, dtype=dtype, device=device)
            for n in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        )
        attention.attend(heads, q, k, v)
        seconds = time.perf_counter() - began
        print(f"heads of {dim}, {case.name}: {seconds:.1f} s", flush=True)


def main() -> int:
    for dim in (128, 64):
        try:
            prebuild(dim, torch.device("cuda"), torch.bfloat16)
        except ValueError as error:  # not installed, no compiler, an old GPU
            print(error)
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
