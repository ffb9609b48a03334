"""Attention in AMX tiles: real and emulated ones bit against bit, one query against many, denormal
numbers, heads whose ends do not fill a tile, scores that grow along a text."""

from __future__ import annotations

import pytest
import torch
from helpers.native_paged import Piece, Text, World, error
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sgl_kernel import native, paged

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")
TILES = [name for name in native.isas() if name in ("amx", "amx_emulated")]
BOTH = pytest.mark.skipif(len(TILES) < 2, reason="no AMX here to hold the emulation against")
DTYPES = ("bfloat16", "int8", "float8")


@pytest.fixture(autouse=True)
def best():
    yield
    native.choose()


@st.composite
def shapes(draw):
    """Heads as models have them, and some whose ends do not fill a tile."""
    kv, group = draw(st.sampled_from([1, 2])), draw(st.integers(1, 8))
    dim = draw(st.sampled_from([24, 64, 80, 96, 128, 256]))
    value = draw(st.sampled_from([dim, 40]))
    window, cap = draw(st.sampled_from([0, 0, 33])), draw(st.sampled_from([0.0, 0.0, 5.0]))
    return paged.Heads(kv * group, kv, dim, dim**-0.5, window=window, soft_cap=cap, value=value)


def run(isa: str, world: World, pieces: list[Piece], threads: int = 1) -> list[torch.Tensor]:
    native.choose(isa)
    return world.run(pieces, threads)


def equal(outs: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(outs, others))


@BOTH
@settings(max_examples=25, deadline=None)
@given(shapes(), st.sampled_from(DTYPES), st.integers(1, 140), st.integers(0, 2**20))
@example(paged.Heads(8, 1, 80, 0.1), "bfloat16", 130, 1)
def test_emulated_tiles_give_the_bits_of_real_ones(heads, dtype, length, seed):
    outs = []
    for isa in ("amx", "amx_emulated"):
        world = World(heads, 1, dtype, seed=seed)
        texts = [world.text(length), world.text(1 + seed % 70)]
        outs.append(run(isa, world, [Piece(t, 0, len(t)) for t in texts]))
    assert equal(*outs)


@BOTH
def test_denormal_products_are_those_of_real_tiles():
    """Keys and values down to the smallest numbers of bfloat16, of which tiles make zeros."""
    outs = []
    for isa in ("amx", "amx_emulated"):
        world = World(paged.Heads(2, 1, 64, 0.125), 1, "bfloat16", turned=0)
        text = world.text(90)
        small = torch.logspace(-45, -15, 64)
        text.qkv[:, 128:192] *= small
        text.qkv[:, 192:] *= small
        outs.append(run(isa, world, [Piece(text, 0, 90)]))
    assert equal(*outs)
    assert outs[0][0].abs().min() < 1e-30


@pytest.mark.parametrize("isa", TILES)
@settings(max_examples=10, deadline=None)
@given(shapes(), st.sampled_from(DTYPES), st.integers(40, 140), st.integers(0, 2**20))
def test_a_query_alone_has_the_bits_it_has_among_many(isa, heads, dtype, length, seed):
    """Alone, within its prompt, and beside rows that share its prefix."""
    world = World(heads, 1, dtype, seed=seed, pages=2000)
    text = world.text(length)
    known = run(isa, world, [Piece(text, 0, length)])[0]
    assert error(known, world.expected(text, stored=True)) <= 2e-2
    at = seed % length
    assert equal(run(isa, world, [Piece(text, at, at + 1)]), [known[at : at + 1]])
    rows = [Piece(text, n, n + 1) for n in range(length - 20, length)]
    together = run(isa, world, rows, threads=2)
    assert equal(together, [known[p.start : p.end] for p in rows])


@pytest.mark.parametrize("isa", TILES)
@pytest.mark.parametrize("step", [0.5, 3.0, 40.0])
def test_scores_may_grow_all_along_a_text(isa, step):
    """A record's maximum lags behind by some powers of two: no weight suffers for it."""
    length = 700
    world = World(paged.Heads(1, 1, 32, 1.0), 1, "bfloat16", turned=0, pages=800)
    qkv = torch.zeros(length, 96)
    qkv[:, 0] = 1.0
    qkv[:, 32] = torch.arange(length) // 64 * step
    qkv[:, 64:] = torch.randn(length, 32, generator=torch.Generator().manual_seed(3))
    text = Text(qkv, world.text(length).pages)
    out = run(isa, world, [Piece(text, 0, length)])[0]
    assert error(out, world.expected(text, stored=True)) <= 2e-2
