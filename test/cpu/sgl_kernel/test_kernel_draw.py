"""Native sampling against a float64 brute force and against the sampler in torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel import native, rows
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Sample
from sglang.srt.logits import sampler
from sglang.srt.worker.native_forward import draw_rows

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")

Array = np.ndarray


@pytest.fixture(params=native.isas())
def isa(request):
    native.choose(request.param)
    yield request.param
    native.choose()


def mask_of(allowed: Array) -> Array:
    bits = np.zeros(-(-len(allowed) // 32) * 32, bool)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32)


def draw(logits, wishes, uniforms, masks=None, threads=1):
    """wishes: (temperature, top_k, top_p, min_p) a row. Logits lie among NaN."""
    logits = np.asarray(logits, np.float32)
    m, n = logits.shape
    wide = torch.full((m, n + 3), float("nan"))
    wide[:, :n] = torch.from_numpy(logits)
    records = rows.draws(*[*zip(*wishes), uniforms])
    if masks is not None:
        records["mask"] = [0 if mask is None else mask.ctypes.data for mask in masks]
    return rows.draw(wide[:, :n], records, threads).tolist()


def intervals(logits, wish, allowed=None):
    """Tokens kept, and where each one's interval ends [n], by brute force in float64."""
    temperature, top_k, top_p, min_p = wish
    x = np.asarray(logits, np.float64)
    x = np.where(allowed, x, -np.inf) if allowed is not None else x
    x = x / temperature
    w = np.exp(x - x.max())
    kept = w > 0
    if 0 < top_k < len(x):
        kept &= x >= np.sort(x)[-top_k]
    if top_p < 1:
        order = np.argsort(-x, kind="stable")
        order = order[kept[order]]
        mass = np.cumsum(w[order]) / w[kept].sum()
        before = np.concatenate([[0], mass[:-1]])
        last = max(int((before < top_p).sum()) - 1, 0)
        # Equal ones together: what precedes all of them counts.
        kept &= x >= x[order[last]]
    if min_p > 0:
        kept &= w >= min_p
    w = np.where(kept, w, 0)
    return kept, np.cumsum(w) / w.sum()


WISHES = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.0, 50, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (0.9, 20, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1),
    (2.0, 200, 0.95, 0.02),
    (1.0, 2, 0.3, 0.0),
    (0.5, 0, 0.5, 0.5),
    (1.0, 0, 0.0, 0.0),
    (1.0, 100000, 0.999, 0.0),
]


def landscapes(random: np.random.Generator, n: int) -> list[Array]:
    """Flat, peaked, steep, with many ties, with -inf."""
    flat = random.normal(size=n)
    peaked = random.normal(size=n)
    peaked[random.integers(0, n, 3)] += 12
    steep = -0.05 * random.permutation(n)
    ties = random.integers(0, 5, n) * 0.5
    holes = np.where(random.random(n) < 0.7, -np.inf, random.normal(size=n) * 4)
    holes[random.integers(0, n)] = 1.0
    return [np.asarray(x, np.float32) for x in (flat, peaked, steep, ties, holes)]


@pytest.mark.parametrize("n", [1, 2, 31, 33, 64, 257, 1000, 5003])
def test_tokens_are_those_of_brute_force(isa, n):
    """A sampled token is kept, and ``uniform`` lies in its interval, but for rounding at its
    ends."""
    random = np.random.default_rng(n)
    for x in landscapes(random, n):
        allowed = random.random(n) < 0.6
        allowed[int(np.argmax(np.where(np.isfinite(x), x, -np.inf)))] = True
        for with_mask in (None, allowed):
            uniforms = random.random(len(WISHES))
            masks = [None if with_mask is None else mask_of(with_mask)] * len(WISHES)
            tokens = draw([x] * len(WISHES), WISHES, uniforms, masks, threads=2)
            for wish, u, token in zip(WISHES, uniforms, tokens):
                kept, ends = intervals(x, wish, with_mask)
                if wish[2] == 0 and wish[1] == 0:  # the most likely ones alone
                    best = np.flatnonzero(kept)
                    assert token in best
                begin = ends[token - 1] if token else 0.0
                slack = 2e-5
                assert kept[token], (wish, token)
                assert begin - slack <= u <= ends[token] + slack, (wish, token)


@pytest.mark.parametrize("wish", WISHES)
def test_what_is_kept_is_what_torch_keeps(wish):
    """Every kept token of a small vocabulary is sampled by a uniform in the middle of its interval,
    and no other token is."""
    random = np.random.default_rng(5)
    temperature, top_k, top_p, min_p = wish
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=max(top_p, 1e-9),
                            min_p=min_p)  # fmt: skip
    for n in (40, 300):
        for x in landscapes(random, n):
            logits = torch.from_numpy(x)[None]
            filtered = sampler._filtered(logits, [Sample(params, uniform=0.5)])
            expected = set(torch.isfinite(filtered[0]).nonzero().flatten().tolist())
            p = filtered[0].double().softmax(-1)
            middle = (p.cumsum(-1) - p / 2).numpy()
            mine = [i for i in sorted(expected) if p[i] > 1e-6]
            tokens = draw([x] * len(mine), [wish] * len(mine), middle[mine])
            assert tokens == mine
            grid = np.linspace(0, 1, 400, endpoint=False)
            assert set(draw([x] * 400, [wish] * 400, grid)) <= expected


def test_a_top_k_beyond_32_bits_cuts_nothing():
    logits = torch.randn(1, 50)
    for uniform in (0.1, 0.5, 0.9):
        tokens = [
            draw_rows(logits, [Sample(SamplingParams(top_k=k), uniform=uniform)], 1)[0]
            for k in (-1, 50, 2**32 + 1, 2**70)
        ]
        assert all(torch.equal(tokens[0], other) for other in tokens)


def test_greedy_takes_the_lowest_of_equals(isa):
    for n in (1, 5, 32, 40, 100, 1001):
        for seed in range(6):
            random = np.random.default_rng(seed)
            x = random.integers(0, 9, n).astype(np.float32)
            allowed = random.random(n) < 0.5
            allowed[random.integers(0, n)] = True
            shown = np.where(allowed, x, -np.inf)
            tokens = draw([x] * 3, [(0.0, 0, 1.0, 0.0), (0.0, 5, 0.5, 0.0), (0.7, 1, 1.0, 0.0)],
                          [0.9] * 3, [None, mask_of(allowed), mask_of(allowed)])  # fmt: skip
            assert tokens == [int(x.argmax()), int(shown.argmax()), int(shown.argmax())]


def test_what_cannot_be_drawn(isa):
    for wish in ((0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (1.0, 5, 0.9, 0.1)):
        for n in (3, 32, 70):
            for bad in (math.nan, math.inf):
                for place in (0, n // 2, n - 1):
                    x = np.zeros(n, np.float32)
                    x[place] = bad
                    assert draw([x], [wish], [0.5]) == [rows.NOT_FINITE]
                    allowed = np.ones(n, bool)
                    allowed[place] = False  # forbidden tokens are not examined
                    assert draw([x], [wish], [0.5], [mask_of(allowed)])[0] >= 0
            none = mask_of(np.zeros(n, bool))
            assert draw([np.zeros(n)], [wish], [0.5], [none]) == [rows.NOTHING]
            assert draw([np.full(n, -np.inf)], [wish], [0.5]) == [rows.NOTHING]
            # Bits behind the vocabulary allow nothing.
            behind = none.copy()
            behind[-1] |= np.uint32(0) if n % 32 == 0 else np.uint32(1 << 31)
            assert draw([np.zeros(n)], [wish], [0.5], [behind]) == [rows.NOTHING]


def test_ends_of_the_unit_interval(isa):
    x = np.full(600, -np.inf, np.float32)
    x[[7, 300, 411]] = [0.0, 1.0, -1.0]
    highest = math.nextafter(1.0, 0.0)
    for wish in ((1.0, 0, 1.0, 0.0), (1.0, 3, 0.9999, 0.0)):
        assert draw([x, x], [wish] * 2, [0.0, highest]) == [7, 411]
    # Weights that underflow have no interval.
    x[599] = -1e4
    assert draw([x], [(1.0, 0, 1.0, 0.0)], [highest]) == [411]


def test_rows_do_not_depend_on_each_other(isa):
    random = np.random.default_rng(1)
    n = 3001
    x = random.normal(size=(24, n)).astype(np.float32) * random.integers(1, 8, (24, 1))
    wishes = [WISHES[i % len(WISHES)] for i in range(24)]
    uniforms = random.random(24)
    alone = [draw(x[i : i + 1], wishes[i : i + 1], uniforms[i : i + 1])[0] for i in range(24)]
    for threads in (1, 2, 3):
        assert draw(x, wishes, uniforms, threads=threads) == alone


def test_tokens_are_those_of_the_torch_sampler():
    """Tokens of a large vocabulary; if they differ, ``uniform`` is within rounding of an end."""
    random = np.random.default_rng(3)
    n = 32000
    x = (random.normal(size=(33, n)) * random.uniform(0.5, 4, (33, 1))).astype(np.float32)
    wishes = [WISHES[i % len(WISHES)] for i in range(33)]
    wishes = [w for w in wishes if w[2] > 0]
    uniforms = random.random(len(wishes))
    tokens = draw(x[: len(wishes)], wishes, uniforms)
    samples = [
        Sample(SamplingParams(temperature=t, top_k=k or -1, top_p=p, min_p=m), uniform=u)
        for (t, k, p, m), u in zip(wishes, uniforms)
    ]
    theirs, errors = sampler.draw(torch.from_numpy(x[: len(wishes)]), samples)
    assert not any(errors)
    for i, (mine, other) in enumerate(zip(tokens, theirs.tolist())):
        if mine != other:
            _, ends = intervals(x[i], wishes[i])
            low, high = sorted((mine, other))
            assert ends[high - 1] - ends[low] <= 1e-5
            assert abs(uniforms[i] - ends[low]) <= 1e-5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([-math.inf, -50.0, -3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 7.0])
        # In steps: what differs by less than float32 tells apart is equal here, not in float64.
        | st.integers(-2000, 2000).map(lambda x: x / 100),
        min_size=1, max_size=300,
    ).filter(lambda x: max(x) > -math.inf),
    st.floats(0.05, 10), st.integers(0, 301), st.floats(0.01, 1), st.floats(0, 0.99),
    st.floats(0, 1, exclude_max=True), st.integers(0, 2**32),
)  # fmt: skip
def test_random_wishes(x, temperature, top_k, top_p, min_p, uniform, seed):
    allowed = np.random.default_rng(seed).random(len(x)) < 0.7
    allowed[int(np.argmax(x))] = True
    wish = tuple(float(np.float32(v)) for v in (temperature, top_k, top_p, min_p))
    wish = (wish[0], top_k, *wish[2:])
    (token,) = draw([x], [wish], [uniform], [mask_of(allowed)])
    assert allowed[token]
    # Thresholds a rounding apart keep at least and at most what is kept here.
    more = (wish[0], wish[1], min(wish[2] * (1 + 1e-5), 1.0), wish[3] * (1 - 1e-5))
    kept, _ = intervals(x, more, allowed)
    assert kept[token]
    less = (wish[0], wish[1], wish[2] * (1 - 1e-5), wish[3] * (1 + 1e-5))
    if (intervals(x, less, allowed)[0] == kept).all():
        _, ends = intervals(x, wish, allowed)
        begin = ends[token - 1] if token else 0.0
        assert begin - 1e-5 <= uniform <= ends[token] + 1e-5
