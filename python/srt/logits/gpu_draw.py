"""Sampling on a GPU by the kernels of sgl_kernel.triton: as ``logits.sampler``, at most four
launches for greedy, temperature, top-k, top-p and min-p, and one each for penalties and masks.

No function here waits for the device: values for the host are left in ``Drawing.fetched``. Masks
are sent to the device with 1 bit per token id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from sgl_kernel.triton import sampling as kernels
from sglang.srt.core.batch import NONE_ALLOWED, Sample
from sglang.srt.core.ints import Ints
from sglang.srt.logits.drawing import NOT_FINITE, Drawing, mask_bytes, sized
from sglang.srt.parallel.staging import send, send_all
from torch import Tensor


def draw(logits: Tensor, samples: Sequence[Sample]) -> Drawing:
    """Queue the sampling of one token per row. logits: float32 [n, vocab], not changed."""
    errors = [""] * len(samples)
    x = logits
    if any(_special(s) for s in samples):
        x = logits.clone()
        _penalise(x, samples)
        _shift(x, samples)
        _mask(x, samples, errors)
    if all(s.params.greedy for s in samples):
        best, tokens = kernels.greedy(x)
    else:
        best, tokens = kernels.sample(
            x, *_parameters(samples, x), cut=any(_cut(s) for s in samples)
        )
    fetched = [tokens, best]
    if x is not logits:
        fetched.append(kernels.greedy(logits)[0])
    return Drawing(tokens, fetched, partial(_outcome, errors))


def _outcome(errors: list[str], host: Sequence[Tensor]) -> tuple[list[int], list[str]]:
    """Return tokens and error messages. ``errors``: messages known so far. ``host``: the tokens,
    each row's largest logit after penalties and masks, and, if these changed logits, before."""
    values = [x.tolist() for x in host]
    tokens, best, raw = values[0], values[1], values[-1]
    messages = list(errors)
    for i, (value, model) in enumerate(zip(best, raw)):
        if value - value != 0.0 and not messages[i]:  # NaN or infinite
            messages[i] = NOT_FINITE if model - model != 0.0 else NONE_ALLOWED
    return tokens, messages


def _special(sample: Sample) -> bool:
    p = sample.params
    return bool(sample.mask is not None or sample.forbidden or p.logit_bias or p.penalised)


def _cut(sample: Sample) -> bool:
    """Return True if top-k, top-p or min-p may exclude tokens."""
    p = sample.params
    return not p.greedy and (p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0)


def _parameters(samples: Sequence[Sample], x: Tensor) -> list[Tensor]:
    """Return the arguments of ``kernels.sample`` after the logits, on the device."""
    params = [s.params for s in samples]
    top_k = [min(max(p.top_k, 0), x.shape[1]) for p in params]  # top_k may exceed an int32
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "temperature": _floats([0.0 if p.greedy else p.temperature for p in params]),
        "top_k": np.array(top_k, dtype=np.int32),
        "top_p": _floats([p.top_p for p in params]),
        "min_p": _floats([p.min_p for p in params]),
        "uniform": np.array([s.uniform for s in samples], dtype=np.float64),
    }
    return list(send_all(arrays, x.device).values())


def _floats(values: list[float]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.float32)


def _penalise(x: Tensor, samples: Sequence[Sample]) -> None:
    """Apply repetition, frequency and presence penalties to x [n, vocab], in place."""
    rows, ids, counts = [], [], []
    for i, sample in enumerate(samples):
        if not sample.params.penalised:
            continue
        drawn, seen = (np.asarray(part, dtype=np.int32) for part in (sample.history, sample.prompt))
        found, place = np.unique(np.concatenate([drawn, seen]), return_inverse=True)
        rows.append(np.full(len(found), i, dtype=np.int32))
        ids.append(found)
        counts.append(np.bincount(place[: len(drawn)], minlength=len(found)).astype(np.int32))
    if not rows:
        return
    params = [s.params for s in samples]
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "rows": np.concatenate(rows),
        "ids": np.concatenate(ids),
        "counts": np.concatenate(counts),
        "repetition": _floats([p.repetition_penalty for p in params]),
        "frequency": _floats([p.frequency_penalty for p in params]),
        "presence": _floats([p.presence_penalty for p in params]),
    }
    kernels.penalise(x, *send_all(arrays, x.device).values())


def _shift(x: Tensor, samples: Sequence[Sample]) -> None:
    """Add biases to x [n, vocab] and set forbidden ids to -inf, in place."""
    biased = [list(s.params.logit_bias) for s in samples]
    if any(biased):
        values = chain.from_iterable(s.params.logit_bias.values() for s in samples)
        bias = send(np.fromiter(values, dtype=np.float32), x.device)
        x.index_put_(_pairs(biased, x), bias, accumulate=True)
    forbidden = [s.forbidden for s in samples]
    if any(forbidden):
        pairs = _pairs(forbidden, x)
        x.index_put_(pairs, x.new_full((len(pairs[0]),), float("-inf")))


def _pairs(ids: Sequence[Sequence[int] | Ints], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column indices, int64, of all ``ids``, which are listed by row."""
    rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    columns = np.fromiter(chain.from_iterable(ids), dtype=np.int64)
    both = send(np.stack([rows, columns]), x.device)
    return both[0], both[1]


def _mask(x: Tensor, samples: Sequence[Sample], errors: list[str]) -> None:
    """Set ids that masks deny to -inf in x [n, vocab], in place. Bad masks set ``errors``."""
    masked = [i for i, s in enumerate(samples) if s.mask is not None]
    if not masked:
        return
    size, masks = mask_bytes(x.shape[1]), []
    for i in masked:
        mask, errors[i] = sized(samples[i].mask, size)
        masks.append(np.frombuffer(mask, dtype="<i4"))
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "masks": np.stack(masks), "rows": np.array(masked, dtype=np.int32)
    }  # fmt: skip
    kernels.apply_mask(x, *send_all(arrays, x.device).values())
