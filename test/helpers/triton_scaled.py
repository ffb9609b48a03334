"""Cases of the kernels of float8 products."""

from __future__ import annotations

import pytest
import torch
from helpers.seeds import LONG
from helpers.triton_place import Place
from sgl_kernel.triton import reference, scaled

# Rows, width, group. A group of a row's whole width, of blocks, and a last one that is short.
SHAPES = ((1, 64, 64), (3, 160, 64), (17, 96, 32), (2, 48, 96), (5, 256, 128))


def values(place: Place) -> None:
    """The largest value of a group becomes 448, and none is off by more than half a step."""
    for rows, width, group in SHAPES:
        x = place.random(rows, width + 3)[:, 3:] * 100
        if rows > 1:
            x[0, : min(group, width)] = 0
        found, scales = scaled.quantise(x, group)
        exact = reference.dequantised(found, scales, group)
        error = (exact - x.double()).abs()
        right = error <= x.double().abs() / 16 + scales.double().amax() / 500
        if not x.is_cuda:  # the interpreter loses a rounding's carry into the exponent
            scaled_to = exact.abs() / scales.double().repeat_interleave(group, 1)[:, :width]
            right |= scaled_to.log2().frac() == 0
        assert bool(right.all())
        assert rows == 1 or not exact[0, : min(group, width)].any(), "zeros stay"
        assert float(found.float().abs().max()) == 448.0
        parts = x.double().abs().split(group, 1)
        most = torch.stack([part.amax(1) for part in parts], 1)
        torch.testing.assert_close(scales.double(), most.clamp(min=1e-12) / 448, rtol=1e-6, atol=0)


def products(place: Place) -> None:
    for number, (rows, width, group) in enumerate(SHAPES):
        for outputs in (16, 70) if place.large or LONG else ((16, 70)[number % 2],):
            x, w = place.random(rows, width), place.random(outputs, width)
            a, b = scaled.quantise(x, group), scaled.quantise(w, group)
            got = scaled.product(*a, *b, group, place.dtype)
            want = reference.dequantised(*a, group) @ reference.dequantised(*b, group).T
            place.close(got, want, 4)


def refusals(place: Place) -> None:
    x = place.random(2, 96)
    a = scaled.quantise(x, 48)
    with pytest.raises(ValueError, match="group is 48; it must be a multiple of 32"):
        scaled.product(*a, *a, 48, place.dtype)
    with pytest.raises(ValueError, match="group is 0"):
        scaled.quantise(x, 0)
    with pytest.raises(ValueError, match="x has stride 96 in its last dimension"):
        scaled.quantise(x.t(), 32)
    b = scaled.quantise(x, 32)
    with pytest.raises(ValueError, match="weight_scales"):
        scaled.product(*b, b[0], b[1][:, :2], 32, place.dtype)


CASES = (values, products, refusals)
