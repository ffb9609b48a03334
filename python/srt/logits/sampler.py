"""Sampler: tokens from logits, as a pure function of (logits, parameters, uniform).

Order: repetition penalty, frequency and presence penalties, bias, forbidden ids and mask;
temperature, top-k, top-p, min-p; then the first token, in vocabulary order, at which the cumulated
probability exceeds ``uniform``. Every step is computed once for all rows that need it, and skipped
for the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
from sglang.srt.core.batch import NONE_ALLOWED, Sample
from sglang.srt.core.ints import Ints
from sglang.srt.logits.drawing import NOT_FINITE, mask_bytes, sized
from sglang.srt.numeric.torch_later import Tensor, torch

# Top-p first looks at this number of most likely tokens, and sorts the vocabulary if too few.
NUCLEUS = 1024


def draw(logits: Tensor, samples: Sequence[Sample]) -> tuple[Tensor, list[str]]:
    """Sample one token per row.

    logits: [n, vocab] float32, not changed. Returns int64 tokens [n] on the same device and one
    error message per row, "" for a valid token.
    """
    errors = [""] * len(samples)
    adjusted = adjust(logits, samples)
    masked = [i for i, s in enumerate(samples) if s.mask is not None]
    if masked:
        adjusted = _mask(adjusted, masked, samples, errors, copy=adjusted is logits)
    # max returns NaN if there is one, and the lowest id of a tie.
    best, tokens = adjusted.max(dim=-1)
    random = [i for i, s in enumerate(samples) if not s.params.greedy]
    if random:
        rows, drawing = _rows(adjusted, random), [samples[i] for i in random]
        drawn = _invert(_filtered(rows, drawing), drawing)
        tokens = drawn if len(random) == len(samples) else _put(tokens, random, drawn)
    for i, value in enumerate(best.tolist()):
        if value - value != 0.0 and not errors[i]:  # NaN or infinite
            broken = not bool(logits[i].max().isfinite())
            errors[i] = NOT_FINITE if broken else NONE_ALLOWED
    return tokens, errors


def adjust(logits: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Return logits after penalties, bias and forbidden ids: ``logits`` itself if none apply."""
    special = [
        i for i, s in enumerate(samples) if s.forbidden or s.params.logit_bias or s.params.penalised
    ]
    return _adjust(logits, samples, special) if special else logits


def _rows(x: Tensor, rows: list[int]) -> Tensor:
    if len(rows) == x.shape[0]:
        return x
    return x.index_select(0, torch.tensor(rows, device=x.device))


def _put(x: Tensor, rows: list[int], values: Tensor) -> Tensor:
    return x.index_copy(0, torch.tensor(rows, device=x.device), values)


def _column(values: Sequence[float], x: Tensor) -> Tensor:
    return torch.tensor(values, dtype=x.dtype, device=x.device).unsqueeze(1)


def _adjust(logits: Tensor, samples: Sequence[Sample], special: list[int]) -> Tensor:
    """Return a new tensor of all rows, with penalties, bias and forbidden ids of ``special``."""
    chosen = [samples[i] for i in special]
    x = _rows(logits, special)
    if len(special) == len(samples):
        x = x.clone()
    if any(s.params.repetition_penalty != 1.0 for s in chosen):
        x = _repetition(x, chosen)
    if any(s.params.frequency_penalty or s.params.presence_penalty for s in chosen):
        counts = torch.zeros_like(x)
        where = _pairs([s.history for s in chosen], x.device)
        counts.index_put_(where, torch.ones((), device=x.device), accumulate=True)
        x -= _column([s.params.frequency_penalty for s in chosen], x) * counts
        x -= _column([s.params.presence_penalty for s in chosen], x) * (counts > 0)
    if any(s.params.logit_bias for s in chosen):
        where = _pairs([list(s.params.logit_bias) for s in chosen], x.device)
        bias = list(chain.from_iterable(s.params.logit_bias.values() for s in chosen))
        x.index_put_(where, _column(bias, x).squeeze(1), accumulate=True)
    if any(s.forbidden for s in chosen):
        where = _pairs([s.forbidden for s in chosen], x.device)
        x.index_put_(where, torch.full((), float("-inf"), device=x.device))
    return x if len(special) == len(samples) else _put(logits, special, x)


def _pairs(ids: Sequence[Sequence[int] | Ints], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return row and column indices, int64, of all ``ids``, which are listed by row."""
    rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    columns = np.concatenate([np.asarray(row, dtype=np.int64) for row in ids])
    return torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)


def _repetition(x: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Divide logits of tokens in prompt or output by the penalty if positive, else multiply (CTRL,
    Keskar et al. 2019)."""
    seen = torch.zeros_like(x, dtype=torch.bool)
    true = torch.ones((), dtype=torch.bool, device=x.device)
    for ids in ([s.prompt for s in samples], [s.history for s in samples]):
        seen.index_put_(_pairs(ids, x.device), true)
    penalty = _column([s.params.repetition_penalty for s in samples], x)
    return torch.where(seen, torch.where(x < 0, x * penalty, x / penalty), x)


def _mask(
    x: Tensor, masked: list[int], samples: Sequence[Sample], errors: list[str], copy: bool
) -> Tensor:
    """Set denied ids of the rows ``masked`` to -inf. ``copy``: x itself must not change."""
    size = mask_bytes(x.shape[1])
    masks = []
    for i in masked:
        mask, error = sized(samples[i].mask, size)
        masks.append(mask)
        errors[i] = error or errors[i]
    denied = _denied(b"".join(masks), len(masks), x)
    if len(masked) < x.shape[0]:
        return _put(x, masked, _rows(x, masked).masked_fill_(denied, float("-inf")))
    return x.masked_fill(denied, -math.inf) if copy else x.masked_fill_(denied, -math.inf)


def narrowed(logits: Tensor, samples: Sequence[Sample | None]) -> Tensor:
    """Return the logits [n, vocab] with -inf at ids that a mask denies, for samples that request
    log-probabilities among the allowed ids only (``masked``). ``logits`` may change."""
    wanted = {i: s for i, s in enumerate(samples) if s and s.masked and s.mask is not None}
    if not wanted:
        return logits
    masks = [sized(sample.mask, mask_bytes(logits.shape[1]))[0] for sample in wanted.values()]
    denied = _denied(b"".join(masks), len(masks), logits)
    rows = list(wanted)
    return _put(logits, rows, _rows(logits, rows).masked_fill_(denied, -math.inf))


def _denied(masks: bytes, count: int, x: Tensor) -> Tensor:
    """Return a bool tensor [count, vocab], True for 0 bits of masks, unpacked on x's device."""
    if x.device.type == "cpu":
        bits = np.unpackbits(~np.frombuffer(masks, dtype=np.uint8), bitorder="little")
        return torch.from_numpy(bits.view(np.bool_).reshape(count, -1)[:, : x.shape[1]])
    packed = torch.frombuffer(bytearray(masks), dtype=torch.int32).to(x.device)
    allowed = packed.view(count, -1, 1) >> torch.arange(32, device=x.device)
    return (allowed & 1).bool().logical_not_().view(count, -1)[:, : x.shape[1]]


def _filtered(x: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Return logits divided by temperature, -inf for tokens that top-k, top-p, min-p exclude."""
    params = [s.params for s in samples]
    if any(p.temperature != 1.0 for p in params):
        x = x / _column([p.temperature for p in params], x)
    cut = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0]
    if not cut:
        return x
    rows = _rows(x, cut)
    least = _least(
        rows,
        [params[i].top_k if params[i].top_k > 0 else x.shape[1] for i in cut],
        [params[i].top_p for i in cut],
        [params[i].min_p for i in cut],
    )
    rows = rows.masked_fill(rows < least, float("-inf"))
    return rows if len(cut) == x.shape[0] else _put(x, cut, rows)


def _least(x: Tensor, top_k: list[int], top_p: list[float], min_p: list[float]) -> Tensor:
    """Return the least logit that each row keeps [n, 1]. Equal logits are treated alike.

    top-k: the k-th largest logit. top-p: the last logit, in descending order, whose predecessors
    have together less than p of the mass that top-k keeps. min-p: largest logit + log(min_p).
    """
    vocab = x.shape[1]
    top_k = [min(k, vocab) for k in top_k]
    nucleus = any(p < 1.0 for p in top_p)
    width = max([k for k in top_k if k < vocab], default=1)
    if nucleus and any(k == vocab and p < 1.0 for k, p in zip(top_k, top_p)):
        width = min(vocab, max(width, NUCLEUS))
    k, p = torch.tensor(top_k, device=x.device).unsqueeze(1), _column(top_p, x)
    whole = k == vocab
    bottom = x.new_full((), float("-inf"))
    while True:
        top = x.topk(width, dim=-1).values
        least = torch.where(whole, bottom, top.gather(1, (k - 1).clamp(max=width - 1)))
        if not nucleus:
            break
        total = x.masked_fill(x < least, float("-inf")).logsumexp(-1, keepdim=True)
        mass = (top - total).exp().masked_fill_(top < least, 0.0).double()
        before = mass.cumsum(-1) - mass
        last = ((before < p) & (top >= least)).sum(-1, keepdim=True) - 1
        found = ~whole | (before[:, -1:] + mass[:, -1:] >= p) | (p >= 1.0)
        least = torch.where(p < 1.0, torch.maximum(least, top.gather(1, last.clamp(min=0))), least)
        if width == vocab or bool(found.all()):
            break
        width = vocab
    if any(m > 0.0 for m in min_p):
        least = torch.maximum(least, x.amax(-1, keepdim=True) + _column(min_p, x).log())
    return least


def _invert(x: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Sample by the inverse of the cumulated distribution, in float64 and vocabulary order.

    The cumulated value of a token with probability 0 is set to 0, so that it is never sampled,
    whatever the order in which the device sums.
    """
    probabilities = x.softmax(-1).double()
    cumulated = probabilities.cumsum(-1).masked_fill_(probabilities == 0, 0.0)
    total = cumulated.amax(-1, keepdim=True)
    at = _column([s.uniform for s in samples], total) * total
    at = torch.minimum(at, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulated > at).byte().argmax(-1)
