"""Log-probabilities: computes log-softmax and reads rows of it back to the host, all rows in one
transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sglang.srt.core.batch import WHOLE, TopList
from sglang.srt.numeric.torch_later import Tensor, torch


def log_softmax(logits: Tensor) -> Tensor:
    """Return the model's own log-probabilities: natural logarithm, float32, the shape of
    ``logits``."""
    return logits.float().log_softmax(-1)


def top_lists(logprobs: Tensor, wanted: Sequence[int]) -> list[TopList]:
    """Return for each row i its ``wanted[i]`` most likely (id, log-probability), most likely first.
    ``logprobs``: [rows, vocabulary]."""
    most = min(max(wanted, default=0), logprobs.shape[1])
    if most <= 0:
        return [[] for _ in wanted]
    values, ids = logprobs.topk(most, dim=-1)
    return [
        list(zip(i[: max(n, 0)], v[: max(n, 0)]))
        for n, v, i in zip(wanted, values.tolist(), ids.tolist())
    ]


def packed_lists(logprobs: Tensor, wanted: Sequence[int]) -> list[tuple[bytes, bytes]]:
    """Return for each row i the ids (int32) and log-probabilities (float32) of its ``wanted[i]``
    most likely tokens as bytes, most likely first. If ``wanted[i]`` is ``WHOLE``, return no ids and
    all log-probabilities of the row."""
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
    """Return for each row i the log-probabilities of the ids ``probes[i]``."""
    most = max((len(ids) for ids in probes), default=0)
    if most == 0:
        return [[] for _ in probes]
    padded = [list(ids) + [0] * (most - len(ids)) for ids in probes]
    values = logprobs.gather(1, torch.tensor(padded, device=logprobs.device)).tolist()
    return [row[: len(ids)] for row, ids in zip(values, probes)]


def chosen(logprobs: Tensor, ids: Tensor) -> list[float]:
    """Return the log-probability of one id of each row; ids: int32 or int64 [n]."""
    return [float(v) for v in logprobs.gather(1, ids.long().unsqueeze(1)).squeeze(1).tolist()]
