"""Pooling: sums of the final hidden states of a row's tokens, for embeddings."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import torch
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import Batch, Row, RowOutput
from sglang.srt.worker.inputs import Inputs
from torch import Tensor

NOT_FINITE = "the model's hidden states are not finite"


def pooled_span(row: Row, first: int) -> tuple[int, int]:
    """The tokens that a row wants summed, as a range of the pass's, where its own begin at
    ``first``."""
    return first + row.pool, first + len(row.tokens)


def sum_states(
    batch: Batch,
    inputs: Inputs,
    wanted: Int32Array,
    hidden: Tensor,
    outputs: list[RowOutput],
    score: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Set ``pooled`` of the rows that ask for it; hidden: [len(wanted), width] of the tokens
    ``wanted``, normed, as the LM head sees it. Summed in float64 unless every one is wanted; all
    rows in one transfer.

    ``score``: what a classifier makes of states [N, width], [N, labels]. It is linear, so the sum's
    scores are the sum of the scores.
    """
    pooled = [i for i, row in enumerate(batch.rows) if row.pool >= 0]
    if not pooled:
        return
    parts = []
    for i in pooled:
        low, high = pooled_span(batch.rows[i], int(inputs.firsts[i]))
        place = int(np.searchsorted(wanted, low))
        states = hidden[place : place + high - low]
        every = batch.rows[i].every
        parts.append(states.double() if every else states.sum(0, True, dtype=torch.float64))
    table = torch.cat(parts)
    if score is not None:
        table = score(table.to(hidden.dtype)).double()
    finite = table.isfinite().all(1).cpu()
    values, first = table.cpu().numpy(), 0
    for i, part in zip(pooled, parts):
        own = slice(first, first := first + len(part))
        outputs[i].pooled = array("d", values[own].tobytes())
        if not finite[own].all() and not outputs[i].error:
            outputs[i].error = NOT_FINITE
