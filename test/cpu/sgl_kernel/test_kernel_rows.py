"""Native norms and gates against float64, over odd shapes, strides and every instruction set."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sgl_kernel import native, rows

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")

WIDTHS = [1, 2, 7, 8, 15, 16, 17, 31, 48, 64, 65, 127, 576, 1000]


@pytest.fixture(params=native.isas())
def isa(request):
    native.choose(request.param)
    yield request.param
    native.choose()


def matrix(m: int, n: int, scale: float = 1.0) -> torch.Tensor:
    """Random [m, n] whose rows lie further apart than n, with NaN between."""
    wide = torch.full((m, n + 5), float("nan"))
    wide[:, :n] = scale * torch.randn(m, n, generator=torch.Generator().manual_seed(m * 1000 + n))
    return wide[:, :n]


def test_norms(isa):
    for n in WIDTHS:
        for m, scale, eps in ((1, 1.0, 1e-6), (3, 1e-4, 1e-5), (4, 300.0, 1e-6)):
            x, gain = matrix(m, n, scale), torch.rand(n) + 0.5
            factor = x.double().pow(2).mean(-1, keepdim=True).add(eps).rsqrt()
            expected = x.double() * factor * gain.double()
            outs = [rows.norm(x, gain, eps, threads) for threads in (1, 2, 3)]
            top = expected.abs().amax(-1, keepdim=True)
            assert ((outs[0].double() - expected).abs() <= 1e-5 * top).all(), (m, n)
            assert torch.equal(outs[0], outs[1])
            assert torch.equal(outs[0], outs[2])
            for i in range(m):
                assert torch.equal(rows.norm(x[i : i + 1], gain, eps)[0], outs[0][i])


def exact(act: str, x: torch.Tensor) -> torch.Tensor:
    if act == "silu":
        return x * torch.sigmoid(x)
    if act == "gelu":
        return x * 0.5 * torch.erfc(-x / math.sqrt(2))
    if act == "gelu_pytorch_tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x * torch.sigmoid(2 * inner)
    return x.clamp(min=0)


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
def test_gates(isa, act):
    for n in WIDTHS:
        for m in (1, 3):
            x = matrix(m, 2 * n, 4.0)
            expected = exact(act, x[:, :n].double()) * x[:, n:].double()
            outs = [rows.gate(x, act, threads) for threads in (1, 2, 3)]
            assert ((outs[0].double() - expected).abs() <= 1e-5 * expected.abs() + 1e-12).all()
            assert torch.equal(outs[0], outs[1])
            assert torch.equal(outs[0], outs[2])
            assert torch.equal(rows.gate(x[:1], act)[0], outs[0][0])


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
def test_gates_far_out(isa, act):
    ends = torch.tensor([-1e30, -300.0, -90.0, 0.0, -0.0, 90.0, 300.0, 1e30])
    got = rows.gate(torch.cat([ends, torch.ones(8)])[None], act)[0]
    assert torch.equal(got[3:], ends[3:].clamp(min=0))
    assert (got[1:3].abs() <= 1e-34).all()
    broken = rows.gate(torch.tensor([[float("nan"), 1.0]]), act)
    assert broken.isnan().all()


def same(some: tuple[Any, Any], others: tuple[Any, Any]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(some, others))


def test_sums_of_log_probabilities(isa):
    for n in [*WIDTHS, 512, 513, 32003]:
        for m, scale in ((1, 1.0), (5, 30.0)):
            x = matrix(m, n, scale)
            outs = [rows.log_sums(x.numpy(), threads) for threads in (1, 2, 3)]
            largest, sums = map(torch.from_numpy, outs[0])
            assert torch.equal(largest, x.amax(-1)), (m, n)
            exact = x.double().logsumexp(-1) - largest.double()
            assert ((sums - exact).abs() <= 5e-7).all(), (m, n)
            for out in outs:
                assert same(out, outs[0]), "threads change the bits"
            for i in range(m):
                alone = (largest[i : i + 1].numpy(), sums[i : i + 1].numpy())
                assert same(rows.log_sums(x[i : i + 1].numpy()), alone)


def test_sums_of_what_is_not_finite_are_nan(isa):
    for n in (1, 15, 70):
        for place in {0, n // 2, n - 1}:
            for value in (math.nan, math.inf):
                x = np.zeros((1, n), np.float32)
                x[0, place] = value
                assert np.isnan(rows.log_sums(x)[1]).all(), (n, place, value)
        x = np.full((1, n), -np.inf, np.float32)
        assert np.isnan(rows.log_sums(x)[1]).all()
        x[0, n // 2] = 3
        largest, sums = rows.log_sums(x)
        assert (float(largest[0]), float(sums[0])) == (3, 0), "ids that are denied"
    with pytest.raises(ValueError, match="at least one column"):
        rows.log_sums(np.zeros((2, 0), np.float32))


def test_what_native_code_cannot_read_is_refused():
    x, ones = torch.randn(4, 6), torch.ones(6)
    for bad in (x.double(), x[:, ::2], x[0]):
        with pytest.raises(ValueError, match=r"float32 \[m, n\] on the CPU|side by side"):
            rows.norm(bad, ones[: bad.shape[-1]], 1e-6)
        with pytest.raises(ValueError, match=r"float32 \[m, n\] on the CPU|side by side"):
            rows.draw(bad, rows.draws([], [], [], [], []))
    with pytest.raises(ValueError, match=r"gain has shape \(5,\); \[6\]"):
        rows.norm(x, ones[:5], 1e-6)
    with pytest.raises(ValueError, match=r"\(3,\); \[4\] of DRAW"):
        rows.draw(x, rows.draws(*[[1.0] * 3] * 5))  # type: ignore[arg-type]  # floats of every column
