"""Log-probabilities: reading rows of log-softmax back as plain lists, all rows in one transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sglang.srt.core.batch import WHOLE, TopList
from sglang.srt.numeric.torch_later import Tensor, torch


def log_softmax(logits: Tensor) -> Tensor:
    """The model's own log-probabilities, natural logarithm, float32."""
    return logits.float().log_softmax(-1)


def top_lists(logprobs: Tensor, wanted: Sequence[int]) -> list[TopList]:
    """The ``wanted[i]`` most likely (id, log-probability) of each row, most likely first."""
    most = min(max(wanted, default=0), logprobs.shape[1])
    if most <= 0:
        return [[] for _ in wanted]
    values, ids = logprobs.topk(most, dim=-1)
    return [
        list(zip(i[: max(n, 0)], v[: max(n, 0)]))
        for n, v, i in zip(wanted, values.tolist(), ids.tolist())
    ]


def packed_lists(logprobs: Tensor, wanted: Sequence[int]) -> list[tuple[bytes, bytes]]:
    """Ids, int32, and log-probabilities, float32, of the ``wanted[i]`` most likely tokens of each
    row, most likely first; where it is ``WHOLE`` no ids and all log-probabilities."""
    most = min(max(wanted), logprobs.shape[1])
    ids = values = np.zeros((len(wanted), 0), dtype=np.int32)
    if most > 0:
        top = logprobs.topk(most, dim=-1)
        ids, values = top.indices.int().cpu().numpy(), top.values.float().cpu().numpy()
    found = []
    for i, count in enumerate(wanted):
        if count == WHOLE:
            found.append((b"", logprobs[i].float().cpu().numpy().tobytes()))
        else:
            found.append((ids[i, : max(count, 0)].tobytes(), values[i, : max(count, 0)].tobytes()))
    return found


def probe_lists(logprobs: Tensor, probes: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probabilities of the ids ``probes[i]`` in row ``i``."""
    most = max((len(ids) for ids in probes), default=0)
    if most == 0:
        return [[] for _ in probes]
    padded = [list(ids) + [0] * (most - len(ids)) for ids in probes]
    values = logprobs.gather(1, torch.tensor(padded, device=logprobs.device)).tolist()
    return [row[: len(ids)] for row, ids in zip(values, probes)]


def chosen(logprobs: Tensor, ids: Tensor) -> list[float]:
    """The log-probability of one id a row; ids: int32 or int64 [n]."""
    return [float(v) for v in logprobs.gather(1, ids.long().unsqueeze(1)).squeeze(1).tolist()]
