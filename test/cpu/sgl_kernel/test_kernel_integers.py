"""Native products of weights that were quantised elsewhere, against float64, on every instruction
set."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sgl_kernel import native, packed
from sgl_kernel.paged import Pass
from sgl_kernel.tape import Tape
from sglang.srt.layers.quantised import Quantised, joined, native_form
from torch import Tensor

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")

SHAPES = [(1, 5, 7), (2, 64, 64), (7, 66, 33), (33, 130, 96), (3, 31, 1500), (100, 33, 256)]


@pytest.fixture(params=native.isas())
def isa(request: Any) -> Any:
    native.choose(request.param)
    yield request.param
    native.choose()


class Made(NamedTuple):
    arguments: tuple[Tensor, Tensor, Tensor | None, str]
    options: dict[str, Any]
    dense: Tensor  # float64


def made(format: str, n: int, k: int, group: int, seed: int = 0) -> Made:
    g = torch.Generator().manual_seed(seed + n + k)
    half = 8 if format.startswith("w4") else 128
    values = torch.randint(-half, half, (n, k), dtype=torch.int8, generator=g)
    rowwise = format in ("w8", "w8a8")
    groups = torch.zeros(k, dtype=torch.int64) if rowwise else torch.arange(k) // group
    shape = n, int(groups.max()) + 1
    scales = (torch.rand(shape, generator=g) * 0.02 + 1e-6).half().float()
    dense = scales.double()[:, groups] * values
    lows = order = None
    if format.endswith("z"):
        lows = torch.randint(-half, half, shape, generator=g).float()
        dense += (scales.double() * lows)[:, groups]
    elif format.endswith("m"):
        lows = torch.randn(shape, generator=g) / 20
        dense += lows.double()[:, groups]
    if not rowwise and seed % 2:
        order = torch.randperm(k, generator=g)
        dense = torch.empty_like(dense).index_copy_(1, order, dense)
    return Made((values, scales, lows, format), {"group": group, "order": order}, dense)


@pytest.mark.parametrize("format", [*packed.AFFINE, "w8", "w8a8"])
def test_products_and_rows(isa: str, format: str) -> None:
    """Weights are exact; so are products, but for what becomes of the activations."""
    for number, (m, n, k) in enumerate(SHAPES):
        case = made(format, n, k, (32, 64, 128)[number % 3], number)
        paired = packed.pack_integers(*case.arguments, **case.options, paired=n % 2 == 0)
        rows = paired.rows(torch.arange(n)).double()
        assert (rows - case.dense).abs().max() <= 2e-7 * case.dense.abs().max()
        x = torch.randn(m, k, generator=torch.Generator().manual_seed(k))
        w = packed.pack_integers(*case.arguments, **case.options, threads=2)
        y = packed.linear(x, w, threads=2)
        seen = x.bfloat16().double()
        if format == "w8a8":
            scale = x.abs().amax(1, keepdim=True) / 127
            seen = ((x / scale).round() * scale).double()
        wanted = seen @ case.dense.T
        bound = 5e-3 if format == "w8a8" else 5e-6
        error = (y.double() - wanted).abs().amax(1) / wanted.abs().amax(1)
        assert error.max() <= bound, (m, n, k)


@pytest.mark.parametrize("format", packed.AFFINE)
def test_a_row_does_not_depend_on_others(isa: str, format: str) -> None:
    case = made(format, 150, 200, 32)
    w = packed.pack_integers(*case.arguments, **case.options)
    x = torch.randn(230, 200, generator=torch.Generator().manual_seed(0))
    whole = packed.linear(x, w)
    for m in range(1, 71):
        first = (m * 37) % (230 - m)
        y = packed.linear(x[first : first + m], w, threads=1 + m % 3)
        assert torch.equal(y, whole[first : first + m]), m


def test_a_tape_takes_inputs_in_their_order() -> None:
    """Normed and not, before and behind the choice of tokens: the same bits as single products."""
    table = packed.pack(torch.randn(9, 96), "f32")
    case = made("w4z", 64, 96, 32, seed=1)
    w = packed.pack_integers(*case.arguments, **case.options)
    gain = torch.rand(96) + 0.5
    back = packed.pack(torch.randn(96, 64), "f32")
    tape = Tape()
    x = tape.embed(table)
    tape.linear(tape.linear(x, w, gain=gain), back, into=x, add=True)
    x = tape.choose(x)
    tape.linear(x, w)
    ids = torch.arange(9, dtype=torch.int32).numpy()
    one, zero = ids[1:2], ids[0:1]
    tables = torch.tensor([0, 9], dtype=torch.int32).numpy()
    chosen = torch.tensor([2, 7], dtype=torch.int32).numpy()
    pass_ = Pass(ids, ids, zero, one * 9, tables, ids, 1)
    got = torch.from_numpy(tape.run(pass_, chosen))
    rows = table.rows(torch.arange(9))
    packed.linear(packed.linear(rows, w, gain=gain), back, out=rows, add=True)
    assert torch.equal(got, packed.linear(rows[[2, 7]], w))


def test_what_cannot_be_packed_is_refused() -> None:
    values, scales = torch.zeros(4, 64, dtype=torch.int8), torch.ones(4, 2)
    for change, message in (
        ({"format": "w4"}, "cannot be packed as 'w4'"),
        ({"group": 48}, "in groups of 48"),
        ({"group": 64}, r"\[4, 1\] are needed"),
        ({"values": values.float()}, "int8 is needed"),
        ({"values": values[:0]}, "int8 is needed"),
        ({"order": torch.zeros(64)}, "an order of 64 inputs"),
        ({"order": torch.arange(63)}, "an order of 64 inputs"),
        ({"format": "w8", "scales": scales[:, :1], "lows": scales}, r"\[4, 1\] are needed"),
    ):
        arguments: dict[str, Any] = {
            "values": values, "scales": scales, "lows": None, "format": "w4z", "group": 32,
        }  # fmt: skip
        with pytest.raises(ValueError, match=message):
            packed.pack_integers(**{**arguments, **change})


def full(shape: tuple[int, int], value: float) -> np.ndarray[Any, Any]:
    return np.full(shape, value, np.float32)


def quantised(k: int = 128, **more: Any) -> Quantised:
    given: dict[str, Any] = {"bits": 4, "group": 32, "scales": full((6, 4), 0.5), **more}
    return Quantised(values=np.ones((6, k), np.int8), **given)


def test_the_smallest_form_that_is_exact_is_chosen() -> None:
    one = full((6, 1), 0.5)
    for q, wanted in (
        (quantised(), ("w4z", 32)),
        (quantised(group=64, scales=full((6, 2), 1)), ("w4z", 64)),
        (quantised(group=128, scales=one), ("w4z", 128)),
        (quantised(96, group=96, scales=one), ("w4z", 128)),
        (quantised(scales=full((6, 4), 1e-9)), ("w4m", 32)),  # no float16
        (quantised(lows=full((6, 4), 1)), ("w4m", 32)),
        (quantised(bits=8, group=128, scales=one), ("w8", 128)),
        (quantised(bits=8, group=128, scales=one, int8_activations=True), ("w8a8", 128)),
        (quantised(bits=8, group=128, scales=one, zeros=one * 8), ("w8z", 128)),
        (quantised(bits=8, zeros=full((6, 4), -128)), ("w8m", 32)),  # 128 is no int8
        (quantised(bits=8, zeros=full((6, 4), 128)), ("w8z", 32)),
    ):
        form = native_form(q)
        assert form is not None
        assert (form.format, form.group) == wanted
        w = packed.pack_integers(q.values, form.scales, form.lows, form.format, group=form.group)
        assert np.abs(w.rows(np.arange(6)) - q.dense()).max() <= 1e-6
    assert native_form(quantised(group=48, scales=full((6, 3), 1))) is None
    assert native_form(quantised(scales=full((6, 4), float("nan")))) is None


def test_parts_of_one_form_are_one_matrix() -> None:
    a, b = quantised(), quantised(zeros=full((6, 4), 1))
    whole = joined([a, b])
    assert whole is not None
    assert np.array_equal(whole.dense(), np.concatenate([a.dense(), b.dense()]))
    order = np.arange(128)[::-1]
    for other in (quantised(bits=8), quantised(order=order), quantised(lows=full((6, 4), 1))):
        assert joined([a, other]) is None
    assert joined([quantised(order=order), quantised(order=order.copy())]) is not None
