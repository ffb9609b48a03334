"""Kernel variants: passes of all sizes need few, since no count and no address makes another one.

Triton compiles a kernel anew, for seconds, where a pointer or a number is a multiple of 16 that was
none before, or a number is 1. Its own keys are counted here, for an H100 and without one.
"""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs triton, which has no build for this system", allow_module_level=True)

from helpers.layouts import random_layout
from helpers.triton_keys import Device, sm90
from sgl_kernel.triton import moe, scaled
from sglang.ir.sampling import SamplingParams
from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.attention.triton_attention import TritonAttention
from sglang.srt.core.batch import Sample
from sglang.srt.core.ints import ints
from sglang.srt.logits import gpu_draw
from torch import Tensor

HEADS, KV_HEADS, DIM = 8, 2, 64


def attention(page_size: int) -> TritonAttention:
    pools = [torch.zeros(4096, KV_HEADS, DIM, dtype=torch.bfloat16) for _ in range(2)]
    attend = TritonAttention(pools[:1], pools[1:], page_size, (0,), HEADS)
    attend.processors = 132
    return attend


def parts(tokens: int) -> list[Tensor]:
    """Queries, keys and values as a layer makes them: views of one tensor."""
    sizes = [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]
    qkv = torch.zeros(tokens, sum(sizes), dtype=torch.bfloat16)
    return [part.view(tokens, -1, DIM) for part in qkv.split(sizes, 1)]


def only_constants_differ(device: Device) -> bool:
    """Whether no two variants of a kernel differ in what is a multiple of 16 alone."""
    keys = [(name, str(signature), str(constants)) for name, signature, constants, _ in
            device.compiled]  # fmt: skip
    return len(set(keys)) == len(keys)


@pytest.mark.parametrize("page_size", [1, 16])
def test_passes_of_any_sizes_share_variants(page_size: int) -> None:
    r = random.Random(page_size)
    heads = Heads(0, HEADS, KV_HEADS, DIM, 0.1)
    with sm90() as device:
        attend = attention(page_size)
        for _ in range(400):
            rows, longest = r.choice([0, 0, 40]), r.choice([20, 200, 600])
            layout, _ = random_layout(r, page_size, longest=longest, rows=rows)
            attend.plan(layout)
            attend.attend(heads, *parts(int(layout.counts.sum())))
    assert only_constants_differ(device)
    # Decode, extend by three blocks, and two blocks of what rows share: no 17 rows here begin with
    # the same keys.
    assert device.names() == {"append": 1, "attend": 6, "merge": 1}


def test_frames_of_any_rows_share_variants() -> None:
    r, heads = random.Random(0), Heads(0, HEADS, KV_HEADS, DIM, 0.1)
    with sm90() as device:
        attend = attention(1)
        for rows in (24, 16, 8, 5, 4, 3, 2, 1):
            frame = attend.frame(rows, 8192, 4096)
            for _ in range(20):
                layout, _ = random_layout(r, 1, kinds="decode", rows=rows)
                frame.plan(layout)
                frame.attend(heads, *parts(rows))
    assert only_constants_differ(device)
    assert device.names() == {"append": 1, "attend": 1, "merge": 1}


def random_sample(r: random.Random, vocab: int) -> Sample:
    params: dict[str, Any] = {
        "temperature": r.choice([0.0, 0.8]), "top_k": r.choice([-1, 1, 40]),
        "frequency_penalty": r.choice([0.0, 0.0, 0.5]),
    }  # fmt: skip
    mask = b"\xff" * (-(-vocab // 32) * 4) if r.random() < 0.2 else None
    history = ints([r.randrange(vocab) for _ in range(r.randint(1, 40))])
    return Sample(SamplingParams(**params), uniform=0.5, history=history, mask=mask)


@pytest.mark.parametrize("vocab", [160, 151])
def test_samples_of_any_number_share_variants(vocab: int) -> None:
    r = random.Random(vocab)
    with sm90() as device:
        for _ in range(300):
            rows = r.choice([1, 2, 3, 16, r.randint(1, 300)])
            gpu_draw.draw(torch.zeros(rows, vocab), [random_sample(r, vocab) for _ in range(rows)])
    kernels = ("apply_mask", "choose", "gather", "greedy", "peaks", "penalise", "weigh")
    assert device.names() == dict.fromkeys(kernels, 1)


def test_experts_of_any_number_of_tokens_share_variants() -> None:
    r = random.Random(0)
    floats: dict[str, Any] = {"dtype": torch.bfloat16}
    gate_up, down = torch.zeros(8, 128, 64, **floats), torch.zeros(8, 64, 64, **floats)
    with sm90() as device:
        for _ in range(300):
            tokens = r.choice([1, 2, 16, r.randint(1, 100), r.randint(1, 3000)])
            chosen = torch.zeros(tokens, 2, dtype=torch.int32)
            moe.fused_moe(
                torch.zeros(tokens, 64, **floats), gate_up, down, torch.zeros(tokens, 2), chosen
            )
    # Tiles of three sizes, for the gated product and the other.
    assert device.names() == {"count": 1, "join": 1, "place": 3, "product": 6}


@pytest.mark.parametrize("group", [128, 512])
def test_float8_products_of_any_rows_share_variants(group: int) -> None:
    r, width, outputs = random.Random(group), 512, 384
    weight = torch.zeros(outputs, width, dtype=torch.float8_e4m3fn)
    scales = torch.zeros(outputs, width // group)
    with sm90() as device:
        for _ in range(100):
            rows = r.choice([1, 2, 16, 64, r.randint(1, 3000)])
            x = scaled.quantise(torch.zeros(rows, width, dtype=torch.bfloat16), group)
            scaled.product(*x, weight, scales, group, torch.bfloat16)
    # Tiles of two sizes.
    assert device.names() == {"product": 2, "quantise": 1}
