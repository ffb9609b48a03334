"""Cases of the sampling kernels, against sorting in float64 and against the host's sampler."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.seeds import LONG
from helpers.triton_place import Place
from sgl_kernel.triton import reference, sampling
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Sample
from sglang.srt.core.ints import ints
from sglang.srt.logits.sampler import draw
from torch import Tensor

# temperature, top-k, top-p, min-p, uniform
Parameters: TypeAlias = tuple[float, int, float, float, float]


def logits_for(place: Place, rows: int, vocab: int) -> Tensor:
    """Some rows plain, some with ties, some with most of the vocabulary left out."""
    x = place.random(rows, vocab, dtype=torch.float32) * 3
    x[1::4] = x[1::4].round()
    x[2::4, ::2] = float("-inf")
    x[3] = 0.5
    return x


def parameters(place: Place, rows: int) -> list[Parameters]:
    r = place.numbers
    # Cuts that depend on each other, where each must be taken of what the last one kept.
    fixed: list[Parameters] = [(1.0, 7, 0.9, 0.0, 0.5), (1.7, 20, 0.6, 0.02, 0.9)]
    return fixed * 2 + [
        (
            r.choice([0.0, 0.3, 1.0, 1.7]),
            r.choice([0, 0, 1, 2, 7, 40, 10**6]),
            r.choice([1.0, 1.0, 0.0, 0.05, 0.5, 0.95]),
            r.choice([0.0, 0.0, 0.02, 0.3, 1.0]),
            r.choice([0.0, r.random(), r.random(), math.nextafter(1.0, 0.0)]),
        )
        for _ in range(rows - 2 * len(fixed))
    ]


def at_edges(place: Place, logits: Tensor, rows: list[Parameters]) -> list[Parameters]:
    """Uniforms beside the edge of some token's interval: a token too many or too few among those
    that are kept moves the edges, and shows."""
    moved = []
    for row, (heat, top_k, top_p, min_p, uniform) in zip(logits, rows):
        if heat:
            ends = reference.distribution(row, heat, top_k, top_p, min_p).cumsum(-1)
            edge = float(ends[place.pick(0, len(ends) - 1)]) + place.numbers.choice([-3e-6, 3e-6])
            uniform = min(max(edge, 0.0), math.nextafter(1.0, 0.0))
        moved.append((heat, top_k, top_p, min_p, uniform))
    return moved


def drawn(place: Place, logits: Tensor, rows: list[Parameters], cut: bool = True) -> Tensor:
    heat, top_k, top_p, min_p, uniform = zip(*rows)
    at: dict[str, Any] = {"device": place.device}
    best, tokens = sampling.sample(
        logits, torch.tensor(heat, **at), place.ints(top_k), torch.tensor(top_p, **at),
        torch.tensor(min_p, **at), torch.tensor(uniform, dtype=torch.float64, **at), cut=cut,
    )  # fmt: skip
    assert torch.equal(best, logits.max(-1).values)
    return tokens


def sizes(block: int, bins: int, room: int, tile: int) -> ExitStack:
    """Other sizes of blocks, bins, lists of candidates and tiles of them."""
    stack = ExitStack()
    for name, value in (("BLOCK", block), ("BINS", bins), ("LIST", room), ("TILE", tile)):
        stack.enter_context(mock.patch.object(sampling, name, value))
    return stack


def samples(place: Place) -> None:
    """Several blocks a row, the last one ragged."""
    rows, vocab = (64, 50_257) if place.large else (36 if LONG else 16, 150)
    logits, wanted = logits_for(place, rows, vocab), parameters(place, rows)
    if place.small:
        wanted = at_edges(place, logits, wanted)
    with sizes(sampling.BLOCK if place.large else 64, 8, 256, 2048):
        tokens = drawn(place, logits, wanted).tolist()
    for row, token, params in zip(logits, tokens, wanted):
        if place.small or not params[0]:
            assert token == reference.sample(row, *params)
        else:
            # float32 may move an edge of a token's interval, or a token over the edge of a nucleus.
            share = reference.distribution(row, *params[:4])
            end = share.cumsum(-1)[token]
            assert float(end - share[token]) - 1e-4 <= params[4] <= float(end) + 1e-4


def blocks(place: Place) -> None:
    """However a row is cut, and whether or not its candidates fit their lists, each token is the
    definition's."""
    rows, vocab = (200, 50_257) if place.large else (24 if LONG else 14, 100)
    logits = logits_for(place, rows, vocab)
    logits[5, vocab // 2] = 40.0  # alone in the nucleus
    logits[6] = logits[6].clamp(-1.0, 1.0) * 1e-3  # nearly flat
    logits[7, ::3], logits[7, 1::3] = 0.0, -0.0  # equal
    wanted = parameters(place, rows)
    wanted[8:12] = [(h, k, 0.9, 0.0, 0.4) for h in (1e-30, 60.0) for k in (0, vocab - 1)]
    if place.small:
        wanted = at_edges(place, logits, wanted)
    cuts = (
        ((4096, 8, 256, 2048), (1024, 8, 8, 512), (16384, 2, 4096, 64))
        if place.large
        else ((128, 8, 128, 256), (16, 8, 2, 64), (32, 2, 8, 64))
    )
    found = []
    for cut in cuts:
        with sizes(*cut):
            found.append(drawn(place, logits, wanted).tolist())
    for cut, tokens in zip(cuts, found):
        assert tokens == found[0], cut
    if place.small:
        assert found[0] == [reference.sample(x, *p) for x, p in zip(logits, wanted)]


def uncut(place: Place) -> None:
    """Rows without top-k, top-p and min-p need no candidates."""
    logits = logits_for(place, 8, 150)
    wanted: list[Parameters] = [(heat, 0, 1.0, 0.0, (i + 0.5) / 8) for i, heat in enumerate(
        [0.0, 0.5, 1.0, 2.0] * 2
    )]  # fmt: skip
    with sizes(64, 8, 16, 64):
        tokens = drawn(place, logits, wanted).tolist()
        assert drawn(place, logits, wanted, cut=False).tolist() == tokens
    assert tokens == [reference.sample(x, *p) for x, p in zip(logits, wanted)]


def like_the_host(place: Place) -> None:
    rows, vocab = 24 if place.large or LONG else 12, 97
    logits, wanted = logits_for(place, rows, vocab), parameters(place, rows)
    tokens = drawn(place, logits, wanted).tolist()
    asked = [
        Sample(
            SamplingParams(temperature=heat, top_k=top_k or -1, top_p=top_p or 1e-9, min_p=min_p),
            uniform=uniform,
        )
        for heat, top_k, top_p, min_p, uniform in wanted
    ]
    assert tokens == draw(logits.cpu(), asked)[0].tolist()


def greediest(place: Place) -> None:
    """The lowest id of a tie, wherever it lies; NaN is reported; ids stay in range."""
    x = logits_for(place, 8, 150)
    x[4] = float("-inf")
    x[5, 77], x[6, 149], x[7, 0] = float("nan"), float("inf"), float("nan")
    with mock.patch.object(sampling, "BLOCK", 64):
        best, tokens = sampling.greedy(x)
        ones = torch.ones(8, device=place.device)
        odd = sampling.sample(
            x, ones, place.ints([0] * 8), ones * 0.9, ones * 0, ones.double() * 0.5
        )
    assert torch.equal(best.isnan(), x.isnan().any(-1))
    assert torch.equal(best[:4], x[:4].max(-1).values)
    assert tokens[:4].tolist() == [int((row == row.max()).nonzero()[0]) for row in x[:4]]
    assert torch.equal(odd[0].isnan(), best.isnan())
    for ids in (tokens, odd[1]):
        assert ((ids >= 0) & (ids < 150)).all()


def masks(place: Place) -> None:
    for vocab, which in ((70, [2, 0]), (64, None), (1, None)):
        x = place.random(3, vocab, dtype=torch.float32)
        count, words = len(which or "abc"), -(-vocab // 32)
        bits = place.numbers.getrandbits(32 * count * words).to_bytes(4 * count * words, "little")
        mask = np.frombuffer(bits, dtype=np.int32).reshape(count, words)
        wanted = x.clone()
        for m, row in enumerate(which or range(3)):
            for j in range(vocab):
                if not int(mask[m, j // 32]) >> j % 32 & 1:
                    wanted[row, j] = float("-inf")
        sampling.apply_mask(x, place.ints(mask), None if which is None else place.ints(which))
        assert torch.equal(x, wanted)


def penalties(place: Place) -> None:
    """Compare with the host's: history and prompt become unique ids with their counts."""
    x, vocab = place.random(3, 50, dtype=torch.float32), 50
    r = place.numbers
    asked, pairs = [], []
    for row in range(3):
        history = [r.randrange(vocab) for _ in range(9 * row)]
        prompt = [r.randrange(vocab) for _ in range(12)]
        params = SamplingParams(
            temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.2 * row,
            presence_penalty=0.4,
        )  # fmt: skip
        asked.append(Sample(params, history=ints(history), prompt=ints(prompt)))
        pairs += [(row, i, history.count(i)) for i in sorted({*history, *prompt})]
    rows, ids, counts = (place.ints(column) for column in zip(*pairs))
    columns = [
        torch.tensor([getattr(s.params, name) for s in asked], device=place.device)
        for name in ("repetition_penalty", "frequency_penalty", "presence_penalty")
    ]
    host = x.cpu().clone()
    sampling.penalise(x, rows, ids, counts, *columns)
    assert sampling.greedy(x)[1].tolist() == draw(host, asked)[0].tolist()
    for row, i, count in pairs:
        y, params = float(host[row, i]), asked[row].params
        y = y * 1.3 if y < 0 else y / 1.3
        y -= params.frequency_penalty * count + (params.presence_penalty if count else 0.0)
        assert abs(float(x[row, i]) - y) < 1e-5


def errors(place: Place) -> None:
    x, ones = place.random(2, 9, dtype=torch.float32), torch.ones(2, device=place.device)
    with pytest.raises(ValueError, match=r"logits is torch\.float64"):
        sampling.greedy(x.double())
    with pytest.raises(ValueError, match=r"uniform is torch\.float32"):
        sampling.sample(x, ones, place.ints([0, 0]), ones, ones, ones)
    with pytest.raises(ValueError, match=r"mask has shape \[2, 2\]; \[2, 1\] is needed"):
        sampling.apply_mask(x, place.ints([[1, 1], [1, 1]]))
    wide = x[:, :1].expand(2, sampling.LARGEST + 1).contiguous()
    with pytest.raises(ValueError, match="1048577 columns; at most 1048576 can be sampled from"):
        sampling.sample(wide, ones, place.ints([0, 0]), ones, ones, ones.double())


CASES = (samples, blocks, uncut, like_the_host, greediest, masks, penalties, errors)
