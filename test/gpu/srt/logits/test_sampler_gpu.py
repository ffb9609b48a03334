"""Sampling by fused kernels against the sampler in plain torch on the CPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from helpers import gpu_device
from helpers.gpu_device import DEVICE, ON_GPU
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import NONE_ALLOWED, Sample
from sglang.srt.core.ints import ints
from sglang.srt.logits import sampler
from sglang.srt.logits.drawing import NOT_FINITE, mask_bytes

gpu_device.needs_device()
gpu_device.needs("triton")

from sglang.srt.logits import gpu_draw  # noqa: E402

ROWS, VOCAB = (64, 5000) if ON_GPU else (12, 300)
GREEDY = SamplingParams(temperature=0.0)


def drawn(logits: torch.Tensor, samples: list[Sample]) -> tuple[torch.Tensor, list[str]]:
    """Sample as ``sampler.draw`` does."""
    drawing = gpu_draw.draw(logits, samples)
    return drawing.tokens, drawing.outcome([x.cpu() for x in drawing.fetched])[1]


def random_sample(r: random.Random) -> Sample:
    bits = bytes(r.randrange(1, 256) for _ in range(mask_bytes(VOCAB)))
    params = SamplingParams(
        temperature=r.choice([0.0, 0.7, 1.0]),
        top_p=r.choice([1.0, 0.8]),
        top_k=r.choice([-1, 20, VOCAB + 7]),
        min_p=r.choice([0.0, 0.05]),
        repetition_penalty=r.choice([1.0, 1.2]),
        frequency_penalty=r.choice([0.0, 0.5]),
        presence_penalty=r.choice([0.0, -0.5]),
        logit_bias=r.choice([{}, {3: 2.5, VOCAB - 1: -4.0}]),
    )
    return Sample(
        params,
        uniform=r.random(),
        history=ints(r.randrange(VOCAB) for _ in range(20)),
        prompt=ints(r.randrange(VOCAB) for _ in range(r.choice([0, 9]))),
        forbidden=r.choice([(), (1, 2)]),
        mask=r.choice([None, bits]),
    )


@pytest.mark.parametrize("seed", range(4))
def test_draws_what_the_cpu_draws(seed: int) -> None:
    torch.manual_seed(seed)
    r = random.Random(seed)
    logits = torch.randn(ROWS, VOCAB) * 3
    samples = [random_sample(r) for _ in range(ROWS)]
    here, errors = sampler.draw(logits, samples)
    there = logits.to(DEVICE)
    before = there.clone()
    tokens, messages = drawn(there, samples)
    assert errors == messages == [""] * ROWS
    assert torch.equal(there, before)
    # A uniform that falls on a boundary may go either way in another order of summation.
    assert (here != tokens.cpu()).sum() <= 1


def test_greedy_rows_and_ties() -> None:
    ties = torch.zeros(3, VOCAB, device=DEVICE)
    ties[1, [70, 200, VOCAB - 1]] = 1.0
    ties[2, 9] = float("nan")
    tokens, errors = drawn(ties, [Sample(GREEDY)] * 3)
    assert tokens.tolist()[:2] == [0, 70]
    assert errors == ["", "", NOT_FINITE]


def test_a_broken_row_fails_alone() -> None:
    logits = torch.zeros(6, 40, device=DEVICE)
    logits[:, 3] = 5.0
    logits[0, 9], logits[1, 9], logits[2] = float("nan"), float("inf"), float("-inf")
    warm = SamplingParams(seed=1)
    none = bytes(mask_bytes(40))
    samples = [
        Sample(GREEDY), Sample(warm), Sample(warm), Sample(warm, mask=none),
        Sample(GREEDY, mask=b"\xff"), Sample(warm, uniform=0.5),
    ]  # fmt: skip
    tokens, errors = drawn(logits, samples)
    assert errors[:4] == [NOT_FINITE, NOT_FINITE, NOT_FINITE, NONE_ALLOWED]
    assert errors[4] == "the token mask has 1 bytes; 8 are needed"
    assert errors[5] == ""
    assert int(tokens[5]) == 3
    assert ((tokens >= 0) & (tokens < 40)).all()


def test_what_the_host_needs_is_left_on_the_device() -> None:
    """Starting to sample reads nothing back; the outcome is made from what was fetched."""
    logits = torch.randn(3, VOCAB, device=DEVICE)
    samples: list[Any] = [Sample(GREEDY), Sample(SamplingParams(), uniform=0.3), Sample(GREEDY)]
    if ON_GPU:
        drawn(logits, samples)  # compiled
        torch.cuda.set_sync_debug_mode("error")
    try:
        drawing = gpu_draw.draw(logits, samples)
    finally:
        if ON_GPU:
            torch.cuda.set_sync_debug_mode("default")
    values, errors = drawing.outcome([x.cpu() for x in drawing.fetched])
    assert values == drawing.tokens.tolist()
    assert errors == [""] * 3
