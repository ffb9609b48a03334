"""Native matrix products against float64, in every format and on every instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sgl_kernel import native, packed

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")

# m, n, k: whole blocks and tiles, parts of them, and dimensions of one.
SHAPES = [
    (0, 5, 7), (1, 1, 1), (1, 5, 7), (2, 64, 64), (7, 65, 33), (33, 130, 96), (3, 31, 1500),
    (130, 70, 200), (16, 128, 2113), (2, 40, 9000),
]  # fmt: skip
# Largest difference, of the row's largest value. int8 sums are exact: what is left is rounding.
BOUNDS = {"f32": 1e-5, "bf16": 5e-6, "w8": 5e-6, "w4": 5e-6, "w8a8": 5e-7}


@pytest.fixture(params=native.isas())
def isa(request):
    native.choose(request.param)
    yield request.param
    native.choose()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def apart(x: torch.Tensor) -> torch.Tensor:
    """The same with rows further apart than they are long, and NaN between."""
    wide = torch.full((x.shape[0], x.shape[1] + 5), float("nan"))
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def int8(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Rows as integers (to nearest, ties away from zero) and their scales, as the kernels say."""
    v = x.float().numpy()
    top = np.abs(v).max(-1, keepdims=True)
    inverse = np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0).astype(np.float32)
    t = (v * inverse).astype(np.float64)
    return np.sign(t) * np.floor(np.abs(t) + 0.5), (top / np.float32(127)).astype(np.float64)


def expected(x: torch.Tensor, weight: torch.Tensor, w: packed.Packed) -> torch.Tensor:
    """x W^T in float64 of what the format makes of x and W; only W4's weights are the kernel's."""
    if w.format == "w8a8":
        (a, s), (b, t) = int8(x), int8(weight)
        return torch.from_numpy((a @ b.T) * (s * t.T))
    if w.format == "f32":
        return x.double() @ weight.double().T
    if w.format == "w8":
        q, scale = int8(weight)
        return x.bfloat16().double() @ torch.from_numpy(q * scale).T
    if w.format == "w4":
        weight = w.rows(torch.arange(w.n))
    return x.bfloat16().double() @ weight.bfloat16().double().T


def near(y: torch.Tensor, to: torch.Tensor, bound: float) -> bool:
    top = to.abs().amax(-1, keepdim=True) if to.numel() else to
    return bool(((y.double() - to).abs() <= bound * top + 1e-37).all())


@pytest.mark.parametrize("format", packed.FORMATS)
def test_products(isa, format):
    for m, n, k in SHAPES:
        for scale in (1.0, 1e4, 1e-4):
            x, weight = apart(scale * random(m, k)), apart(random(n, k, seed=1) / scale / 3)
            weight[n // 2] = 0
            if m > 1:
                x[1] = 0
            w = packed.pack(weight, format, threads=2)
            around = torch.full((m + 2, n + 9), 7.0)
            y = packed.linear(x, w, out=around[1:-1, 4 : 4 + n], threads=2)
            assert near(y, expected(x, weight, w), BOUNDS[format]), (m, n, k, scale)
            around[1:-1, 4 : 4 + n] = 7
            assert (around == 7).all(), "written outside of the output"


@pytest.mark.parametrize("format", packed.FORMATS)
def test_a_row_does_not_depend_on_others(isa, format):
    """A row's bits are the same with any rows beside it, anywhere, on any number of threads."""
    for paired in (False, True):
        w = packed.pack(random(150, 200), format, paired=paired)
        x = random(230, 200)
        whole = packed.linear(x, w)
        for m in range(1, 71):
            first = (m * 37) % (230 - m)
            y = packed.linear(x[first : first + m], w, threads=1 + m % 3)
            assert torch.equal(y, whole[first : first + m]), m
        for threads in (2, 3):
            assert torch.equal(packed.linear(x, w, threads=threads), whole)
    long = packed.pack(random(40, 4200), format)
    x = random(20, 4200)
    rows = [packed.linear(x[i : i + 1], long)[0] for i in range(20)]
    assert torch.equal(packed.linear(x, long), torch.stack(rows))


ACTS = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * 0.5 * torch.erfc(-x / math.sqrt(2)),
    "gelu_pytorch_tanh": lambda x: (
        x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    ),
    "relu": lambda x: x.clamp(min=0),
}


@pytest.mark.parametrize("format", packed.FORMATS)
def test_what_comes_before_and_after(isa, format):
    """RMSNorm before; bias, gates and the residual after."""
    for m, n, k in ((1, 7, 30), (3, 33, 64), (20, 100, 130)):
        x, gain = apart(random(m, k) * 3), random(k, seed=2).abs() + 0.5
        factor = x.double().pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()
        normed = (x.double() * factor * gain.double()).float()
        # A rounding of the norm may move an input by one step of its format.
        bound = {"f32": 2e-5, "w8a8": 2e-2}.get(format, 4e-3)
        for act, exact in ACTS.items():
            weight, bias = random(2 * n, k, seed=3) / k**0.5, random(2 * n, seed=4)
            w = packed.pack(weight, format, paired=True)
            both = expected(normed, weight, w) + bias.double()
            residual = random(m, n, seed=5)
            y = packed.linear(
                x, w, bias=bias, gain=gain, eps=1e-5, act=act, out=apart(residual), add=True
            )
            gated = exact(both[:, :n]) * both[:, n:]
            assert near(y, gated + residual.double(), bound), (m, n, k, act)
        w = packed.pack(weight[:n], format)
        y = packed.linear(x, w, bias=bias[:n], out=residual.clone(), add=True)
        plain = expected(x, weight[:n], w) + bias[:n].double() + residual.double()
        assert near(y, plain, 2 * BOUNDS[format]), (m, n, k)


@pytest.mark.parametrize("format", packed.FORMATS)
@pytest.mark.parametrize("type", [torch.float32, torch.bfloat16])
def test_rows_of_the_packed(isa, format, type):
    for n, k in ((1, 1), (65, 70), (200, 129)):
        for paired in {False, n % 2 == 0}:
            weight = apart(random(n, k)).to(type)
            w = packed.pack(weight, format, paired=paired, threads=3)
            ids = torch.randperm(n)
            rows, wanted = w.rows(ids, threads=2), weight[ids].float()
            if format in ("w8", "w8a8"):
                q, scale = int8(wanted)
                assert near(rows, torch.from_numpy(q * scale), 1e-6)
            elif format == "w4":
                error = (rows - wanted).pow(2)
                simple = wanted.abs().amax(-1, keepdim=True) / 7
                naive = ((wanted / simple).round() * simple - wanted).pow(2)
                # A single weight is its scale, which has five bits.
                assert error.sum() <= (naive.sum() if k > 1 else wanted.pow(2).sum() / 32**2)
            else:
                assert torch.equal(rows, wanted.bfloat16().float() if format == "bf16" else wanted)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_four_bits(isa, group):
    """Each group is a scale of five significant bits times -8..7; the product is that of bf16."""
    weight = random(70, 300) * torch.logspace(-3, 3, 300)
    w = packed.pack(weight, "w4", group=group)
    rows = w.rows(torch.arange(70))
    assert torch.equal(rows, rows.bfloat16().float())
    for i in range(0, 300, group):
        part, wanted = rows[:, i : i + group], weight[:, i : i + group]
        assert (part - wanted).abs().max() <= wanted.abs().max() / 6 / 1.5
        assert all(len(row.unique()) <= 16 for row in part)
    x = random(9, 300)
    assert near(packed.linear(x, w), x.bfloat16().double() @ rows.double().T, BOUNDS["w4"])


@pytest.mark.parametrize("format", packed.FORMATS)
def test_what_is_not_finite_stays_in_its_row_and_column(isa, format):
    for bad in (float("nan"), float("inf"), -float("inf")):
        x, weight = random(40, 70), random(80, 70, seed=1)
        x[17, 3], weight[70, 69] = bad, bad
        y = packed.linear(x, packed.pack(weight, format))
        spoilt = torch.zeros(40, 80, dtype=torch.bool)
        spoilt[17], spoilt[:, 70] = True, True
        assert torch.equal(~y.isfinite(), spoilt)
    huge = packed.linear(random(3, 70) * 1e30, packed.pack(random(80, 70), format))
    assert huge.isfinite().all()


def test_int8_is_the_same_on_every_instruction_set():
    """Sums of integers are exact, so that all sets give the same bits."""
    outs = []
    for name in native.isas():
        native.choose(name)
        w = packed.pack(random(100, 1300), "w8a8")
        outs.append(packed.linear(random(9, 1300), w))
    native.choose()
    assert all(torch.equal(outs[0], other) for other in outs)


@pytest.mark.parametrize("format", packed.FORMATS)
def test_parts_are_products_of_their_own(isa, format):
    """Heads of one product each, in one call: the same bits, whatever the strides; in slabs too."""
    for count, m, n, k in ((3, 5, 40, 24), (7, 1, 16, 80), (40, 200, 16, 300)):
        weights = [packed.pack(random(n, k, seed=i), format) for i in range(count)]
        x = random(m * count, k + 6).view(m, count, k + 6)[..., 2 : k + 2]
        y = packed.Parts(weights)(x, threads=2)
        for i in range(count):
            assert torch.equal(y[:, i], packed.linear(x[:, i], weights[i]))


def test_parts_that_differ_are_refused():
    weights = [packed.pack(random(8, 4), "f32"), packed.pack(random(8, 6), "f32")]
    with pytest.raises(ValueError, match="matrices of one shape and format"):
        packed.Parts(weights)
    with pytest.raises(ValueError, match=r"float32 \[m, 1, 4\]"):
        packed.Parts(weights[:1])(torch.zeros(3, 2, 4))
