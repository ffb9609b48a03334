"""Sampling from NumPy logits by one native call of sgl-kernel, with the results of
``logits.sampler``. NumPy applies penalties, bias and forbidden ids, which few requests have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sgl_kernel import rows
from sglang.srt.core.batch import NONE_ALLOWED, Sample
from sglang.srt.logits.drawing import NOT_FINITE, Drawing, drawn, mask_bytes, sized
from sglang.srt.numeric.host_arrays import Array


def draw(logits: Array, samples: Sequence[Sample], threads: int) -> Drawing:
    """Sample one token per row. logits: float32 [n, vocab], not changed."""
    errors = [""] * len(samples)
    adjusted = np.ascontiguousarray(adjust(logits, samples))
    draws, kept = draw_records(samples, logits.shape[1], errors)
    tokens = rows.draw(adjusted, draws, threads)
    del kept
    note_errors(tokens.tolist(), errors)
    return drawn(np.maximum(tokens, 0), errors)


def draw_records(
    samples: Sequence[Sample], vocab: int, errors: list[str]
) -> tuple[np.ndarray[Any, Any], list[Array]]:
    """Return the records for ``rows.draw``, and the masks to which the records point. A mask of
    the wrong size sets its row's entry of ``errors``."""
    params = [s.params for s in samples]
    if all(p.greedy for p in params):
        draws = np.zeros(len(samples), rows.DRAW)  # temperature 0: nothing else counts
    else:
        draws = rows.draws(
            [0.0 if p.greedy else p.temperature for p in params],
            [min(p.top_k, vocab) for p in params],  # top_k may exceed an int32
            [p.top_p for p in params],
            [p.min_p for p in params],
            [s.uniform for s in samples],
        )
    kept, size = [], mask_bytes(vocab)
    for i, sample in enumerate(samples):
        if sample.mask is not None:
            mask, errors[i] = sized(sample.mask, size)
            words = np.frombuffer(mask, dtype=np.uint32)
            kept.append(words)
            draws["mask"][i] = words.__array_interface__["data"][0]
    return draws, kept


def note_errors(tokens: Sequence[int], errors: list[str]) -> None:
    """Set ``errors[i]`` for each negative token i, which ``rows.draw`` returned for a failure."""
    if min(tokens, default=0) >= 0:
        return
    for i, token in enumerate(tokens):
        if token < 0 and not errors[i]:
            errors[i] = NOT_FINITE if token == rows.NOT_FINITE else NONE_ALLOWED


def adjust(logits: Array, samples: Sequence[Sample]) -> Array:
    """Return logits after penalties, bias and forbidden ids: ``logits`` itself if none apply."""
    special = [
        i for i, s in enumerate(samples) if s.forbidden or s.params.logit_bias or s.params.penalised
    ]
    if not special:
        return logits
    adjusted = logits.copy()
    for i in special:
        adjust_row(adjusted[i], samples[i])
    found: Array = adjusted
    return found


def adjust_row(row: Array, sample: Sample) -> None:
    """Apply a sample's penalties, bias and forbidden ids to a row, in the sampler's order."""
    params = sample.params
    history = np.asarray(sample.history, dtype=np.int64)
    if params.repetition_penalty != 1.0:
        seen = np.union1d(np.asarray(sample.prompt, dtype=np.int64), history)
        penalty, values = np.float32(params.repetition_penalty), row[seen]
        row[seen] = np.where(values < 0, values * penalty, values / penalty)
    if params.frequency_penalty or params.presence_penalty:
        ids, counts = np.unique(history, return_counts=True)
        row[ids] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        row[ids] -= np.float32(params.presence_penalty)
    if params.logit_bias:
        bias = params.logit_bias
        row[list(bias)] += np.array(list(bias.values()), dtype=np.float32)
    if sample.forbidden:
        row[np.asarray(sample.forbidden, dtype=np.int64)] = -np.inf


def denied(mask: bytes, vocab: int) -> Array:
    """Return bool [vocab], True for each id whose bit in the mask is 0."""
    bits = np.unpackbits(~np.frombuffer(mask, dtype=np.uint8), bitorder="little")
    return bits.view(np.bool_)[:vocab]
