"""Native paged attention and append: against float64 brute force, and bit against bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.native_paged import Piece, Text, World, error
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel import native, paged

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")
ISAS = native.isas()

# Relative to the largest value of a row. bfloat16 and int8 pools: over what the pools hold, so the
# bound is about queries and weights, which are rounded to bfloat16 where the machine multiplies it.
BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 2e-2, "float8": 2e-2}


@pytest.fixture(params=ISAS)
def isa(request):
    native.choose(request.param)
    yield request.param
    native.choose()


def heads(q=4, kv=2, dim=32, **more):
    return paged.Heads(q, kv, dim, dim**-0.5, **more)


def whole(text: Text) -> Piece:
    return Piece(text, 0, len(text))


SHAPES = [
    # q, kv, dim, turned, page size, window, soft cap, gains
    (4, 2, 32, 32, 1, 0, 0.0, False),
    (3, 3, 16, 16, 3, 0, 0.0, True),
    (8, 1, 64, 64, 16, 0, 0.0, False),
    (14, 2, 64, 32, 1, 0, 30.0, False),
    (5, 5, 80, 20, 1, 70, 0.0, False),
    (2, 1, 128, 128, 16, 0, 0.0, True),
    (7, 1, 24, 24, 3, 5, 10.0, False),
    (2, 2, 8, 8, 1, 0, 0.0, False),
    (1, 1, 128, 0, 1, 200, 0.0, False),
]
# Values of other widths, a part of the keys (as latents are), and scores without values.
KINDS: list[dict[str, Any]] = [
    {"sinks": True}, {"value": 48}, {"value": 12, "sinks": True},
    {"dim": 40, "value": 32, "shared": True, "kv": 1, "q": 19},
    {"dim": 36, "value": 14, "shared": True, "sinks": True},
    {"dim": 576, "value": 512, "shared": True, "kv": 1},
]  # fmt: skip


def kind(number: int, **more) -> paged.Heads:
    settings: dict[str, Any] = {"q": 6, "kv": 2, "dim": 32, **KINDS[number], **more}
    if settings.get("sinks"):
        torch.manual_seed(number)
        settings["sinks"] = 2 * torch.randn(settings["q"])
    return heads(**settings)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_other_values_and_sinks_are_those_of_brute_force(isa, dtype):
    for number in range(len(KINDS)):
        cap, window = (3.0, 40) if number % 2 else (0.0, 0)
        world = World(kind(number, window=window, soft_cap=cap), 1 + 2 * (number % 2), dtype)
        texts = [world.text(n) for n in (1, 2, 65, 100)]
        outs = world.run([whole(t) for t in texts], threads=1 + number % 3)
        for text, out in zip(texts, outs):
            expected = world.expected(text, stored=dtype != "float32")
            assert error(out, expected) <= BOUNDS[dtype], (KINDS[number], len(text))


@pytest.mark.parametrize("dtype", BOUNDS)
def test_outputs_are_those_of_brute_force(isa, dtype):
    for number, (q, kv, dim, turned, size, window, cap, gains) in enumerate(SHAPES):
        world = World(
            heads(q, kv, dim, window=window, soft_cap=cap), size, dtype, turned=turned,
            gains=gains, seed=number,
        )  # fmt: skip
        texts = [world.text(n) for n in (1, 2, 63, 64, 65, 150)]
        outs = world.run([whole(t) for t in texts], threads=1 + number % 3)
        for text, out in zip(texts, outs):
            expected = world.expected(text, stored=dtype != "float32")
            assert error(out, expected) <= BOUNDS[dtype], (SHAPES[number], len(text))


def test_float_arithmetic_over_bfloat16_is_exact_without_pairs():
    """The float32 bound holds over bfloat16 pools if only keys and values are stored in
    bfloat16."""
    for name in {"avx512", "avx2", "plain"} & set(ISAS):
        native.choose(name)
        for dtype in ("bfloat16", "int8", "float8"):
            world = World(heads(), 1, dtype)
            text = world.text(100)
            assert error(world.run([whole(text)])[0], world.expected(text, stored=True)) <= 1e-5
    native.choose()


def test_int8_keys_and_values_are_within_half_a_step(isa):
    """|x - stored| <= largest of the head / 254, and attention within the bound that follows: a
    score is off by at most d = scale * sum|q| * largest / 254, a weight by a factor of e^(2 d)."""
    world = World(heads(4, 2, 64), 3, "int8", gains=True)
    text = world.text(90)
    out = world.run([whole(text)])[0]
    q, k, v = world.parts(text)
    keys, values = world.stored(text)
    steps = [x.abs().amax(-1, keepdim=True) / 254 for x in (k, v)]
    assert ((keys - k).abs() <= steps[0] * 1.001).all()
    assert ((values - v).abs() <= steps[1] * 1.001).all()
    drift = float((q.abs().sum(-1).max() * world.heads.scale) * steps[0].max())
    bound = (np.expm1(2 * drift) * v.abs().max() + steps[1].max()) * 1.001 + 0.02 * v.abs().max()
    worst = (out.double() - world.expected(text)).abs().max()
    assert worst <= bound
    assert worst <= 0.1  # measured far below the bound


def test_float8_is_rounded_to_nearest_and_saturates(isa):
    """Every number of e4m3, the middles between them and their neighbours, and what is larger."""
    world = World(heads(1, 1, 64), 1, "float8", turned=0)
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (numbers[1:] + numbers[:-1]) / 2
    around = [middles.nextafter(torch.tensor(float(x))) for x in (-1e9, 1e9)]
    x = torch.cat([numbers, middles, *around, torch.tensor([448.1, 464.0, 1e4, 1e30])])
    x = torch.cat([x, -x, x.new_zeros(-2 * len(x) % 64)]).view(-1, 64)
    text = Text(torch.cat([x, x, x], 1), list(range(len(x))))
    world.run([whole(text)])
    wanted = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    for pool in (world.kv.keys, world.kv.values):
        assert torch.equal(pool[: len(x), 0].view(torch.uint8), wanted)


def test_append_writes_its_slots_alone_and_rotates_queries(isa):
    for dtype in BOUNDS:
        for gains, turned in ((False, 24), (True, 20), (False, 0)):
            world = World(heads(3, 1, 24), 3, dtype, turned=turned, gains=gains)
            text = world.text(20)
            world.run([Piece(text, 0, 7)])
            before = [p.clone() for p in (world.kv.keys, world.kv.values)]
            world.run([Piece(text, 7, 20)], threads=2)
            slots = [text.pages[i // 3] * 3 + i % 3 for i in range(7, 20)]
            _, k, v = world.parts(text)
            for pool, old, exact, kept in zip(
                (world.kv.keys, world.kv.values), before, (k, v), world.stored(text)
            ):
                others = torch.ones(len(pool), dtype=torch.bool)
                others[slots] = False
                same = pool[others].view(torch.uint8) == old[others].view(torch.uint8)
                assert same.all()
                steps = {"float32": 1e-6, "bfloat16": 2.0**-8, "int8": 1 / 250, "float8": 2.0**-4}
                step = steps[dtype]
                assert ((kept - exact).abs() <= step * exact.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize(
    ("at", "bad"),
    [(slice(32, 48), "nan"), (slice(64, 80), "nan"), (slice(79, 80), "nan"),
     (slice(64, 80), "inf"), (slice(70, 71), "-inf"), (slice(32, 48), 0x7FFFFFFF)],
)  # fmt: skip
def test_what_is_not_finite_is_seen_by_queries_after_it_alone(isa, at, bad):
    """A key, values, one of a value. What comes of tokens before it is other requests' cache."""
    for dtype in BOUNDS:
        world = World(heads(2, 2, 16), 1, dtype)
        text = world.text(30)
        clean = world.run([whole(text)])[0]
        if isinstance(bad, int):  # the bits of another NaN
            text.qkv[20, at] = torch.tensor(bad, dtype=torch.int32).view(torch.float32)
        else:
            text.qkv[20, at] = float(bad)
        out = world.run([whole(text)])[0]
        assert torch.equal(out[:20], clean[:20])
        assert out[20:, :16].isnan().all()
        assert torch.equal(out[20:, 16:], clean[20:, 16:])


@pytest.mark.parametrize("at", [3, 9, 13])
def test_a_latent_that_is_not_finite_reaches_later_queries_only(isa, at):
    """NaN in the part that is also the value, or in the rest."""
    for dtype in BOUNDS:
        world = World(paged.Heads(3, 1, 14, 0.3, value=10, shared=True), 1, dtype)
        text = world.text(30)
        clean = world.run([whole(text)])[0]
        text.qkv[20, 3 * 14 + at] = float("nan")
        out = world.run([whole(text)])[0]
        assert torch.equal(out[:20], clean[:20])
        assert out[20:].isnan().all()


@pytest.mark.parametrize(("q", "kv", "dim"), [(4, 3, 8), (4, 0, 8), (0, 1, 8), (2, 1, 7)])
def test_heads_that_cannot_be_are_refused(q, kv, dim):
    with pytest.raises(ValueError, match=f"{kv} key heads evenly|have {dim} dimensions"):
        heads(q, kv, dim)


@pytest.mark.parametrize(
    ("more", "message"),
    [({"value": 7}, "values have 7 dimensions"), ({"shared": True}, "no part of 8 of keys"),
     ({"sinks": torch.zeros(3)}, "sinks are"), ({"sinks": torch.zeros(4).half()}, "float16")],
)  # fmt: skip
def test_values_and_sinks_that_cannot_be_are_refused(more, message):
    with pytest.raises(ValueError, match=message):
        heads(4, 2, 8, **more)


# ---- the same bits however a prompt is cut, batched, shared, spread over threads ---------------


def cut(random: np.random.Generator, length: int) -> list[tuple[int, int]]:
    ends = sorted({*random.integers(1, length, size=int(random.integers(0, 6))).tolist(), length})
    return list(zip([0, *ends[:-1]], ends))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [heads(6, 2, 48), heads(6, 2, 48, window=100), kind(3), kind(4)])
def test_bits_do_not_depend_on_how_a_prompt_is_cut(isa, dtype, shape):
    world = World(shape, 1, dtype, pages=1200)
    text = world.text(600)
    expected = world.run([whole(text)])[0]
    for threads in (1, 2, 3):
        pieces = cut(world.numpy, len(text))
        outs = [world.run([Piece(text, a, b)], threads)[0] for a, b in pieces]
        assert torch.equal(torch.cat(outs), expected), pieces
    # Token by token, around the ends of chunks and segments.
    for i in (0, 1, 63, 64, 65, 127, 300, 511, 512, 513, 575, 576, 599):
        for threads in (1, 3):
            one = world.run([Piece(text, i, i + 1)], threads)[0]
            assert torch.equal(one[0], expected[i]), (i, threads)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [heads(4, 2, 32), kind(3)])
def test_bits_do_not_depend_on_the_batch(isa, dtype, shape):
    world = World(shape, 3, dtype, pages=2000)
    texts = [world.text(int(n)) for n in world.numpy.integers(1, 700, size=7)]
    alone = [world.run([whole(t)])[0] for t in texts]
    for threads in (1, 2, 3):
        pieces = []
        for text in texts:
            a = int(world.numpy.integers(0, len(text)))
            b = a + 1 if world.numpy.random() < 0.5 else len(text)
            pieces.append(Piece(text, a, b))
        order = world.numpy.permutation(len(pieces))
        for i, out in zip(order, world.run([pieces[i] for i in order], threads)):
            assert torch.equal(out, alone[i][pieces[i].start : pieces[i].end])


@st.composite
def trees(draw):
    """Texts as (parent or None, shared pages, length): prefixes of prefixes."""
    texts: list[tuple[int | None, int, int]] = []
    for i in range(draw(st.integers(2, 9))):
        parent = draw(st.none() | st.integers(0, i - 1)) if i else None
        shared = draw(st.integers(0, texts[parent][2] - 1)) if parent is not None else 0
        texts.append((parent, shared, shared + draw(st.integers(1, 330))))
    return texts


@settings(max_examples=12, deadline=None)
@given(
    trees(), st.sampled_from([1, 3, 16]), st.sampled_from([0, 90]), st.integers(1, 3),
    st.sampled_from(sorted(BOUNDS)), st.integers(0, 2**20),
)  # fmt: skip
def test_bits_do_not_depend_on_shared_prefixes(tree, size, window, threads, dtype, seed):
    world = World(heads(4, 2, 16, window=window), size, dtype, pages=4000 // size + 100, seed=seed)
    texts: list[Text] = []
    pieces = []
    for parent, shared, length in tree:
        shared -= shared % size
        texts.append(world.text(length, texts[parent] if parent is not None else None, shared))
        start = int(world.numpy.integers(shared, length)) if length > shared else shared
        pieces.append(Piece(texts[-1], start, start + 1 if seed % 2 else length))
    for text in texts:
        world.run([whole(text)])
    order = world.numpy.permutation(len(pieces))
    chosen = [pieces[i] for i in order]
    together = world.run(chosen, threads)
    for piece, out, apart in zip(chosen, together, world.run(chosen, 1, apart=True)):
        assert torch.equal(out, apart)
        if dtype == "float32":
            expected = world.expected(piece.text)[piece.start : piece.end]
            assert error(out, expected) <= 1e-5


def test_many_rows_that_share_a_long_prefix(isa):
    world = World(heads(6, 3, 16), 1, "bfloat16", pages=8000)
    root = world.text(700)
    world.run([whole(root)])
    texts = [world.text(640 + i, root, 640 - 70 * (i % 3)) for i in range(1, 25)]
    for text in texts:
        world.run([whole(text)])
    pieces = [Piece(t, len(t) - 1 - i % 5, len(t)) for i, t in enumerate(texts)]
    apart = world.run(pieces, apart=True)
    for threads in (1, 2, 3):
        for out, expected in zip(world.run(pieces, threads), apart):
            assert torch.equal(out, expected)
