"""The sampler against independent implementations: transformers' processors, numpy, counting."""

from __future__ import annotations

import math
import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import NONE_ALLOWED, RowOutput, Sample
from sglang.srt.core.ints import ints
from sglang.srt.core.matcher import POSTPONED
from sglang.srt.core.workers import Mask
from sglang.srt.logits import sampler
from sglang.srt.logits.drawing import NOT_FINITE, drawn
from sglang.srt.logits.sampler import draw
from sglang.srt.parallel.staging import Fetched
from sglang.srt.worker import forward
from sglang.srt.worker.runner import _masked, _settle, _Tip
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

GREEDY = SamplingParams(temperature=0.0)


def bits(allowed: list[int], vocab: int) -> bytes:
    words = np.zeros((vocab + 31) // 32, dtype=np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << (token % 32))
    return words.astype("<u4").tobytes()


def reference(logits: Tensor, sample: Sample) -> tuple[np.ndarray[Any, Any], int]:
    """Distribution and token of one row, from transformers' processors and plain numpy."""
    p, x = sample.params, logits.clone().unsqueeze(0)
    seen = [*sample.prompt, *sample.history]
    if p.repetition_penalty != 1.0 and seen:
        x = RepetitionPenaltyLogitsProcessor(p.repetition_penalty)(torch.tensor([seen]), x)
    for token in set(sample.history):
        count = list(sample.history).count(token)
        x[0, token] -= p.frequency_penalty * count + p.presence_penalty
    for token, bias in p.logit_bias.items():
        x[0, token] += bias
    for token in sample.forbidden:
        x[0, token] = -math.inf
    if sample.mask is not None:
        assert isinstance(sample.mask, bytes)
        allowed = np.unpackbits(np.frombuffer(sample.mask, np.uint8), bitorder="little")
        x[0, torch.from_numpy(allowed[: x.shape[1]] == 0)] = -math.inf
    if p.greedy:
        out = np.zeros(x.shape[1])
        out[int(np.argmax(x[0].numpy()))] = 1.0
        return out, int(np.argmax(x[0].numpy()))
    warpers = LogitsProcessorList([TemperatureLogitsWarper(p.temperature)])
    if p.top_k > 0:
        warpers.append(TopKLogitsWarper(p.top_k))
    if p.top_p < 1.0:
        warpers.append(TopPLogitsWarper(p.top_p))
    if p.min_p > 0.0:
        warpers.append(MinPLogitsWarper(p.min_p))
    no_ids: Any = None
    out = warpers(no_ids, x)[0].double().softmax(-1).numpy()
    return out, int(np.searchsorted(np.cumsum(out), sample.uniform * out.sum(), side="right"))


def random_sample(r: random.Random, vocab: int) -> Sample:
    def maybe(value: Any, default: Any) -> Any:
        return value if r.random() < 0.4 else default

    params = SamplingParams(
        temperature=r.choice([0.0, 0.3, 1.0, 1.0, 1.7]),
        top_k=maybe(r.choice([1, 2, 5, vocab, vocab + 9]), -1),
        top_p=maybe(r.choice([0.05, 0.5, 0.9, 0.999]), 1.0),
        min_p=maybe(r.choice([0.01, 0.2, 1.0]), 0.0),
        frequency_penalty=maybe(r.uniform(-2, 2), 0.0),
        presence_penalty=maybe(r.uniform(-2, 2), 0.0),
        repetition_penalty=maybe(r.choice([0.7, 1.3]), 1.0),
        logit_bias=maybe({r.randrange(vocab): r.uniform(-9, 9) for _ in range(3)}, {}),
    )
    return Sample(
        params,
        uniform=r.choice([0.0, r.random(), r.random(), 1 - 2**-53]),
        history=ints(r.randrange(vocab) for _ in range(9)) if params.penalised else ints(),
        prompt=ints(r.randrange(vocab) for _ in range(9))
        if params.repetition_penalty != 1.0
        else ints(),
        forbidden=maybe(tuple(r.sample(range(vocab), 3)), ()),
        mask=maybe(bits(r.sample(range(vocab), vocab // 2), vocab), None),
    )


@pytest.mark.parametrize("vocab", [37, 64, 2100])
def test_mixed_rows_equal_the_reference(vocab: int) -> None:
    """Rows of every kind in one batch; a second vocabulary is wider than the nucleus' first try."""
    r, hits = random.Random(vocab), 0
    torch.manual_seed(vocab)
    for _ in range(40 if vocab < 100 else 10):
        n = r.randint(1, 7)
        logits = torch.randn(n, vocab) * r.choice([0.1, 1.0, 5.0])
        before = logits.clone()
        samples = [random_sample(r, vocab) for _ in range(n)]
        tokens, errors = draw(logits, samples)
        assert torch.equal(logits, before)
        assert errors == [""] * n
        for i, token in enumerate(tokens.tolist()):
            weights, wanted = reference(logits[i], samples[i])
            assert weights[token] > 0, samples[i]
            # Where uniform falls within rounding of a boundary, the neighbour is right as well.
            edge = np.abs(np.cumsum(weights) - samples[i].uniform * weights.sum()).min() < 1e-6
            assert token == wanted or edge, samples[i]
            hits += token == wanted
            alone, _ = draw(logits[i : i + 1], [samples[i]])
            assert alone.item() == token, "a token depended on the other rows"
    assert hits > 30


def test_distribution_is_the_model_s() -> None:
    """Chi-square of 20000 samples, 4 degrees of freedom: 18.5 is exceeded once in a thousand."""
    logits = torch.tensor([1.0, -0.5, 0.3, 2.0, -1.5])
    params = SamplingParams(temperature=1.3)
    uniforms = np.random.default_rng(7).random(20000)
    tokens, _ = draw(logits.expand(20000, 5), [Sample(params, uniform=u) for u in uniforms])
    expected = torch.softmax(logits.double() / 1.3, 0).numpy() * 20000
    counts = np.bincount(tokens.numpy(), minlength=5)
    assert ((counts - expected) ** 2 / expected).sum() < 18.5


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(3, 50)
    logits[1, [7, 30]] = 1.0
    tokens, errors = draw(logits, [Sample(GREEDY)] * 3)
    assert tokens.tolist() == [0, 7, 0]
    assert errors == ["", "", ""]


def test_equal_logits_survive_top_k_and_top_p_together() -> None:
    logits = torch.zeros(1, 8)
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.2)):
        drawn = {draw(logits, [Sample(params, uniform=u / 16)])[0].item() for u in range(16)}
        assert drawn == set(range(8))


def test_impossible_tokens_are_never_drawn() -> None:
    """uniform at both ends, with impossible tokens at both ends of the vocabulary."""
    logits = torch.full((1, 300), -math.inf)
    logits[0, 100:200] = torch.randn(100, generator=torch.Generator().manual_seed(0))
    for uniform in (0.0, 1 - 2**-53, math.nextafter(1.0, 0.0)):
        for params in (SamplingParams(), SamplingParams(top_p=0.9999), SamplingParams(min_p=1e-9)):
            token = draw(logits, [Sample(params, uniform=uniform)])[0].item()
            assert 100 <= token < 200
    underflow = torch.tensor([[-200.0, 0.0, -200.0]])
    for uniform in (0.0, math.nextafter(1.0, 0.0)):
        assert draw(underflow, [Sample(SamplingParams(), uniform=uniform)])[0].item() == 1


def test_a_broken_row_fails_alone() -> None:
    logits = torch.zeros(6, 40)
    logits[:, 3] = 5.0
    logits[0, 9] = math.nan
    logits[1, 9] = math.inf
    logits[2] = -math.inf
    warm = SamplingParams(seed=1)
    samples = [
        Sample(GREEDY), Sample(warm), Sample(warm), Sample(warm, mask=bits([], 40)),
        Sample(GREEDY, mask=b"\xff"), Sample(warm, uniform=0.5),
    ]  # fmt: skip
    tokens, errors = draw(logits, samples)
    assert errors[:4] == [NOT_FINITE, NOT_FINITE, NOT_FINITE, NONE_ALLOWED]
    assert errors[4] == "the token mask has 1 bytes; 8 are needed"
    assert errors[5] == ""
    assert tokens[5].item() == 3


def test_forbidden_and_mask_and_bias() -> None:
    logits = torch.arange(40.0).unsqueeze(0)
    sample = Sample(GREEDY, forbidden=(39,), mask=bits([3, 38, 39], 40))
    assert draw(logits, [sample])[0].item() == 38
    sample = Sample(SamplingParams(temperature=0.0, logit_bias={0: 100.0}))
    assert draw(logits, [sample])[0].item() == 0


def test_plain_rows_pay_nothing_for_special_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the rows that need it are adjusted or filtered, and greedy rows are not sampled."""
    shapes: dict[str, list[int]] = {"_mask": [], "_least": [], "_invert": [], "_adjust": []}
    for name in shapes:
        original = getattr(sampler, name)

        def counted(
            x: Tensor, *rest: Any, _name: str = name, _call: Any = original, **options: Any
        ) -> Any:
            shapes[_name].append(len(rest[0]) if _name == "_mask" else x.shape[0])
            return _call(x, *rest, **options)

        monkeypatch.setattr(sampler, name, counted)
    logits = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    draw(logits, [Sample(GREEDY)] * 6)
    assert not any(shapes.values())
    nucleus, masked = SamplingParams(top_p=0.5), bits([1, 2], 64)
    samples = [Sample(GREEDY)] * 3 + [Sample(nucleus, uniform=0.2)] + [Sample(SamplingParams())]
    draw(logits, [*samples, Sample(GREEDY, mask=masked)])
    assert shapes == {"_mask": [1], "_least": [1], "_invert": [2], "_adjust": []}
    draw(logits, [Sample(GREEDY)] * 5 + [Sample(GREEDY, forbidden=(1,))])
    assert shapes["_adjust"] == [6]


def test_a_mask_that_was_not_made_is_an_error_of_its_row() -> None:
    """Any other error of the row counts more."""
    broken = RowOutput(error="its image could not be read")
    outputs = [RowOutput(), RowOutput(), RowOutput(), broken]
    masks = [Mask(bits([3], 40)), Mask(error="a dead end"), Mask(error=POSTPONED)]
    tips = [
        _Tip(i, i, Sample(GREEDY, mask=mask), -1, (), output)
        for i, (mask, output) in enumerate(zip([0, 1, 2, 2], outputs))
    ]
    tips = _masked(tips, masks, 40)
    drawing = drawn(*draw(torch.zeros(4, 40), [tip.sample for tip in tips if tip.sample]))
    _settle(tips, drawing, Fetched([drawing.tokens], lambda: None))
    assert [out.token for out in outputs] == [3, -1, -1, -1]
    assert [out.postponed for out in outputs] == [False, False, True, False]
    assert outputs[1].error == f"{NONE_ALLOWED}: a dead end"
    assert outputs[2].error == POSTPONED


@pytest.mark.parametrize("fused", [True, False])
def test_fused_sampling_can_be_disabled(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU has the kernels. Both samplers are stand-ins that say which it was."""
    fused_draw = SimpleNamespace(draw=lambda *_: "fused")
    monkeypatch.setattr(forward, "find_spec", lambda name: name)
    monkeypatch.setattr(sys.modules["sglang.srt.logits"], "gpu_draw", fused_draw, False)
    monkeypatch.setattr(sampler, "draw", lambda *_: (torch.zeros(1), ["torch"]))
    on_gpu: Any = SimpleNamespace(is_cuda=True)
    eager = forward.Eager(None, None, fused_sampling=fused)  # type: ignore[arg-type]
    drawing: Any = eager.draw(on_gpu, [Sample(GREEDY)])
    assert (drawing == "fused") == fused
    assert fused or drawing.outcome([torch.zeros(1)]) == ([0.0], ["torch"])
