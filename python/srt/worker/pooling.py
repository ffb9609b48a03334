"""Pooling: sums of the final hidden states of a row's tokens, for embeddings."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from srt.core.batch import Batch, RowOutput
from srt.worker.inputs import Inputs

NOT_FINITE = "the model's hidden states are not finite"


def sum_states(batch: Batch, inputs: Inputs, hidden: Tensor, outputs: list[RowOutput]) -> None:
    """Set ``pooled`` of the rows that ask for it; hidden: [T, width], normed, as the LM head sees
    it. Summed in float64, all rows in one transfer."""
    wanted = [i for i, row in enumerate(batch.rows) if row.pool >= 0]
    if not wanted:
        return
    sums = []
    for i in wanted:
        first, row = int(inputs.firsts[i]), batch.rows[i]
        states = hidden[first + row.pool : first + len(row.tokens)]
        sums.append(states.sum(0, dtype=torch.float64))
    table = torch.stack(sums)
    finite = table.isfinite().all(1).tolist()
    for i, values, good in zip(wanted, table.cpu().numpy(), finite):
        outputs[i].pooled = array("d", values.tobytes())
        if not good and not outputs[i].error:
            outputs[i].error = NOT_FINITE
