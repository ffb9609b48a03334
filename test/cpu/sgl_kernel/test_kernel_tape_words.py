"""Operations of a tape besides products and attention, against float64: both norms, written, added
or of some columns in place; activations; rows by position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sgl_kernel import native
from torch import Tensor

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")

TOKENS = 5
WIDTHS = [1, 2, 7, 16, 17, 48, 65, 127, 576]


@pytest.fixture(params=native.isas())
def isa(request):
    native.choose(request.param)
    yield request.param
    native.choose()


def rows(count: int, width: int, seed: int, mean: float = 0.0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) + mean


class Words:
    """A tape whose first buffer holds ``x``, and a pass that runs it."""

    def __init__(self, x: Tensor) -> None:
        from sgl_kernel import packed
        from sgl_kernel.tape import Pass, Tape

        arena = packed.Arena(packed.packed_bytes(len(x), x.shape[1], "f32"))
        self.table = packed.pack(x, "f32", arena=arena)
        self.tape = Tape()
        self.x = self.tape.embed(self.table)
        ids = np.arange(TOKENS, dtype=np.int32)
        ends = np.array([0, TOKENS], dtype=np.int32)
        self.positions = ids[::-1].copy()
        self.work = Pass(ids, self.positions, ends[:1], ends[1:], ends, ids, 1)

    def place(self, positions: np.ndarray) -> None:
        """Positions [3, TOKENS] in place of one a token."""
        from sgl_kernel.tape import Pass

        ids, ends = np.arange(TOKENS, dtype=np.int32), np.array([0, TOKENS], dtype=np.int32)
        self.positions = positions
        self.work = Pass(ids, positions, ends[:1], ends[1:], ends, ids, 1)

    def run(self, threads: int = 1) -> Tensor:
        return torch.from_numpy(self.tape.run(self.work, np.empty(0, dtype=np.int32), threads))


def normed(x: Tensor, gain: Tensor, eps: float, bias: Tensor | None, centred: bool) -> Tensor:
    x = x.double()
    if centred:
        x = x - x.mean(-1, keepdim=True)
    y = x * x.square().mean(-1, keepdim=True).add(eps).rsqrt() * gain.double()
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("centred", [False, True])
def test_norms(isa, centred: bool) -> None:
    for width in WIDTHS:
        x, gain = rows(TOKENS, width, width, mean=2.0), rows(1, width, 1)[0]
        for bias in (None, rows(1, width, 2)[0]):
            for add in (False, True):
                words = Words(x)
                into = words.tape.embed(words.table) if add else None
                words.tape.norm(words.x, gain, 1e-3, into=into, add=add, bias=bias, centred=centred)
                want = normed(x, gain, 1e-3, bias, centred) + (x.double() if add else 0)
                got = words.run()
                # The subtracted mean is rounded too.
                top = want.abs().amax(-1, keepdim=True) + 2 * gain.abs().max()
                assert ((got.double() - want).abs() <= 1e-5 * top).all(), (width, add)
                assert torch.equal(got, words.run(threads=3))


def test_columns_are_normed_in_place(isa) -> None:
    x, gain = rows(TOKENS, 64, 3), rows(1, 24, 4)[0]
    words = Words(x)
    words.tape.norm(words.x, gain, 1e-5, into=words.x, first=16)
    got = words.run()
    want = normed(x[:, 16:40], gain, 1e-5, None, False)
    assert torch.equal(got[:, :16], x[:, :16])
    assert torch.equal(got[:, 40:], x[:, 40:])
    assert (got[:, 16:40].double() - want).abs().max() < 1e-5
    with pytest.raises(ValueError, match="no 1 vectors of 24 from column 41"):
        words.tape.norm(words.x, gain, 1e-5, into=words.x, first=41)


def test_columns_are_normed_into_others(isa) -> None:
    x, gain = rows(TOKENS, 64, 3), rows(1, 24, 4)[0]
    words = Words(x)
    into = words.tape.embed(words.table)
    words.tape.norm(words.x, gain, 1e-5, into=into, first=16, to=40)
    got = words.run()
    want = normed(x[:, 16:40], gain, 1e-5, None, False)
    assert torch.equal(got[:, :40], x[:, :40])
    assert (got[:, 40:].double() - want).abs().max() < 1e-5
    with pytest.raises(ValueError, match="no 1 vectors of 24 from column 41"):
        words.tape.norm(words.x, gain, 1e-5, into=into, first=16, to=41)


@pytest.mark.parametrize("half", [1, 7, 16, 37])
@pytest.mark.parametrize("sections", [False, True])
def test_vectors_are_rotated_into_others(isa, half: int, sections: bool) -> None:
    """Three vectors, 5 columns apart, each by one position, or its sections by three."""
    from sgl_kernel.paged import Rotary

    x, angles = rows(TOKENS, 6 * half + 13, half), rows(11, half, 8)
    words = Words(x)
    cut = (half // 3, half // 2, half - half // 3 - half // 2)
    if sections:
        words.place(np.random.default_rng(half).integers(0, 11, (3, TOKENS), dtype=np.int32))
    places = torch.tensor(words.positions).expand(3, TOKENS).long()
    axis = torch.repeat_interleave(torch.arange(3), torch.tensor(cut))  # [half]
    angle = angles.double()[places[axis].T, torch.arange(half)]  # [TOKENS, half]
    into = words.tape.embed(words.table)
    apart = 2 * half + 5
    turns = Rotary(angles.cos().numpy(), angles.sin().numpy(), sections=cut)
    words.tape.turn(words.x, turns, 3, into, (1, apart), (2, apart))
    got = words.run()
    assert torch.equal(got, words.run(threads=3))
    kept = torch.ones(x.shape[1], dtype=torch.bool)
    for i in range(3):
        begin = 2 + i * apart
        a, b = x[:, begin - 1 : begin - 1 + 2 * half].double().chunk(2, 1)
        c, s = angle.cos(), angle.sin()
        want = torch.cat([a * c - b * s, a * s + b * c], 1)
        assert (got[:, begin : begin + 2 * half].double() - want).abs().max() < 1e-5
        kept[begin : begin + 2 * half] = False
    assert torch.equal(got[:, kept], x[:, kept])
    with pytest.raises(ValueError, match="no 4 vectors"):
        words.tape.turn(words.x, turns, 4, into, (1, apart), (2, apart))
    with pytest.raises(ValueError, match="do not add up"):
        words.tape.turn(words.x, replace(turns, sections=(half, 1, 0)), 1, into)


@pytest.mark.parametrize("format", ["f32", "bf16", "w8a8"])
def test_each_part_has_a_matrix(isa, format: str) -> None:
    """The same bits as of the product that stands by itself."""
    from sgl_kernel import packed

    count, k, n = 5, 24, 40
    x = rows(TOKENS, count * (k + 3), 7)
    arena = packed.Arena(count * packed.packed_bytes(n, k, format))
    parts = packed.Parts([packed.pack(rows(n, k, i), format, arena=arena) for i in range(count)])
    words = Words(x)
    into = words.tape.buffer(count * (n + 2))
    words.tape.each(words.x, parts, into, (3, k + 3), (2, n + 2))
    own = x.view(TOKENS, count, k + 3)[..., 3:].contiguous()
    for threads in (1, 3):
        got = words.run(threads).view(TOKENS, count, n + 2)[..., 2:]
        assert torch.equal(got, parts(own))
    with pytest.raises(ValueError, match="no 5 vectors of 40 from column 3"):
        words.tape.each(words.x, parts, into, (3, k + 3), (3, n + 2))


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
def test_activations(isa, act: str) -> None:
    from sglang.srt.layers.activations import ACTIVATIONS

    for width in WIDTHS:
        x = 3 * rows(TOKENS, width, width)
        words = Words(x)
        words.tape.activate(words.x, act)
        assert (words.run().double() - ACTIVATIONS[act](x.double())).abs().max() < 1e-5


def test_rows_by_position(isa) -> None:
    x, table = rows(TOKENS, 33, 5), rows(9, 33, 6)
    words = Words(x)
    words.tape.place(words.x, table)
    assert torch.equal(words.run(), x + table[torch.from_numpy(words.positions).long()])
    with pytest.raises(ValueError, match="width 32"):
        words.tape.place(words.x, table[:, :32])
