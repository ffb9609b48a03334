"""Sampling on a CPU by sgl-kernel: as ``worker.sampler``, in one pass over the logits.

Penalties, bias and forbidden ids, which few requests have, stay with torch; masks, temperature,
top-k, top-p, min-p and the sampling itself are native.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sgl_kernel import rows
from sglang.srt.core.batch import NONE_ALLOWED, Sample
from sglang.srt.worker.sampler import NOT_FINITE, adjust, mask_bytes, sized
from torch import Tensor


def draw(logits: Tensor, samples: Sequence[Sample], threads: int) -> tuple[Tensor, list[str]]:
    """See ``worker.sampler.draw``; float32 logits on the CPU."""
    errors = [""] * len(samples)
    adjusted = adjust(logits, samples).contiguous()
    params = [s.params for s in samples]
    if all(p.greedy for p in params):
        draws = np.zeros(len(samples), rows.DRAW)  # temperature 0: nothing else counts
    else:
        draws = _records(samples, logits.shape[1])
    kept = []  # the masks, while their addresses are in use
    size = mask_bytes(logits.shape[1])
    for i, sample in enumerate(samples):
        if sample.mask is not None:
            mask, errors[i] = sized(sample.mask, size)
            words = np.frombuffer(mask, dtype=np.uint32)
            kept.append(words)
            draws["mask"][i] = words.__array_interface__["data"][0]
    tokens = rows.draw(adjusted, draws, threads)
    if int(tokens.min()) < 0:
        for i, token in enumerate(tokens.tolist()):
            if token < 0 and not errors[i]:
                errors[i] = NOT_FINITE if token == rows.NOT_FINITE else NONE_ALLOWED
        tokens.clamp_(min=0)
    return tokens.long(), errors


def _records(samples: Sequence[Sample], vocab: int) -> np.ndarray[Any, Any]:
    params = [s.params for s in samples]
    return rows.draws(
        [0.0 if p.greedy else p.temperature for p in params],
        [min(p.top_k, vocab) for p in params],  # top_k may exceed an int32
        [p.top_p for p in params],
        [p.min_p for p in params],
        [s.uniform for s in samples],
    )
