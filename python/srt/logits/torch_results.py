"""TorchResults: hidden states, logits and tokens as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import Sample
from sglang.srt.logits import logprobs as readout
from sglang.srt.logits.drawing import Drawing
from sglang.srt.logits.results import Pooled, Readings, Wanted
from sglang.srt.logits.sampler import narrowed
from sglang.srt.numeric.torch_later import Tensor, torch
from sglang.srt.parallel.staging import Fetched, readback_of, send


def pick(hidden: Tensor, wanted: Int32Array) -> Tensor:
    """Return the rows ``wanted`` (ascending, distinct) of hidden [T, width]."""
    if len(wanted) == hidden.shape[0]:  # all rows
        return hidden
    return hidden.index_select(0, send(wanted, hidden.device))


class TorchResults:
    """Implements ``logits.results.Results``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.readback = readback_of(device)

    def pick(self, states: Tensor, at: Int32Array) -> Tensor:
        return pick(states, at)

    def widened(self, logits: Tensor) -> Tensor:
        return logits.float()

    def rows(self, x: Tensor, rows: Sequence[int]) -> Tensor:
        return x.index_select(0, send(np.array(rows), self.device))

    def no_tokens(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self.device)

    def put(self, tokens: Tensor, places: Sequence[int], values: Tensor) -> None:
        tokens.index_copy_(0, send(np.array(places), self.device), values)

    def fetch(self, drawing: Drawing) -> Fetched:
        return self.readback.fetch(drawing.fetched)

    def narrowed(self, logits: Tensor, samples: Sequence[Sample | None]) -> Tensor:
        return narrowed(logits, samples)

    def read(self, logits: Tensor, ids: Tensor | list[int], wanted: Wanted) -> Readings:
        if isinstance(ids, list):
            ids = torch.tensor(ids, device=self.device)
        logprobs = readout.log_softmax(logits)
        return Readings(
            readout.chosen(logprobs, ids),
            readout.top_lists(logprobs, wanted.tops),
            readout.probe_lists(logprobs, wanted.probes),
            readout.packed_lists(logprobs, wanted.packed) if any(wanted.packed) else [],
        )

    def pooled(
        self,
        states: Tensor,
        spans: Sequence[tuple[int, int, bool]],
        score: Callable[[Tensor], Tensor] | None,
    ) -> Pooled:
        """See ``Results.pooled``. All rows are copied to the host in one transfer."""
        parts = []
        for first, end, every in spans:
            part = states[first:end]
            parts.append(part.double() if every else part.sum(0, True, dtype=torch.float64))
        table = torch.cat(parts)
        if score is not None:
            table = score(table.to(states.dtype)).double()
        finite = table.isfinite().all(1).cpu().numpy()
        return Pooled(table.cpu().numpy(), finite)
