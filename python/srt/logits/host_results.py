"""HostResults: hidden states, logits and tokens as NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import WHOLE, Sample, TopList
from sglang.srt.logits.drawing import Drawing, mask_bytes, sized
from sglang.srt.logits.host_sampler import denied
from sglang.srt.logits.results import Pooled, Readings, Wanted
from sglang.srt.numeric.host_arrays import Array


class HostValues:
    """Values that are on the host."""

    def __init__(self, values: list[Array]) -> None:
        self._values = values

    def wait(self) -> list[Array]:
        return self._values


class HostResults:
    """Implements ``logits.results.Results``."""

    def pick(self, states: Array, at: Int32Array) -> Array:
        return states if len(at) == len(states) else states[at]

    def widened(self, logits: Array) -> Array:
        return logits

    def rows(self, x: Array, rows: Sequence[int]) -> Array:
        return x[list(rows)]

    def no_tokens(self, count: int) -> Array:
        return np.zeros(count, np.int32)

    def put(self, tokens: Array, places: Sequence[int], values: Array) -> None:
        tokens[list(places)] = values

    def fetch(self, drawing: Drawing) -> HostValues:
        return HostValues(drawing.fetched)

    def narrowed(self, logits: Array, samples: Sequence[Sample | None]) -> Array:
        size = mask_bytes(logits.shape[1])
        for row, sample in zip(logits, samples):
            if sample is not None and sample.masked and sample.mask is not None:
                row[denied(sized(sample.mask, size)[0], len(row))] = -np.inf
        return logits

    def read(self, logits: Array, ids: Array | list[int], wanted: Wanted) -> Readings:
        logprobs = log_softmax(logits)
        found = logprobs[np.arange(len(logprobs)), np.asarray(ids, dtype=np.intp)]
        return Readings(
            found.tolist(),
            [top_list(row, count) for row, count in zip(logprobs, wanted.tops)],
            [row[list(ids)].tolist() if ids else [] for row, ids in zip(logprobs, wanted.probes)],
            [packed(row, count) for row, count in zip(logprobs, wanted.packed)]
            if any(wanted.packed)
            else [],
        )

    def pooled(
        self,
        states: Array,
        spans: Sequence[tuple[int, int, bool]],
        score: Callable[[Array], Array] | None,
    ) -> Pooled:
        parts = []
        for first, end, every in spans:
            part = states[first:end]
            parts.append(part if every else part.sum(0, np.float64, keepdims=True))
        table = np.concatenate(parts, dtype=np.float64)
        if score is not None:
            table = score(table.astype(np.float32)).astype(np.float64)
        return Pooled(table, np.asarray(np.isfinite(table).all(1)))


def log_softmax(logits: Array) -> Array:
    """Natural logarithms, float32 [n, vocab]; the sums are in float64."""
    with np.errstate(invalid="ignore"):  # logits that are not finite give NaN
        shifted = logits - logits.max(-1, keepdims=True)
        sums = np.exp(shifted).sum(-1, keepdims=True, dtype=np.float64)
        shifted -= np.log(sums)
    found: Array = shifted
    return found


def most_likely(row: Array, count: int) -> Array:
    """Ids of the ``count`` most likely tokens, most likely first; of equals the lowest id first."""
    count = min(count, len(row))
    if count < 1:
        return np.zeros(0, np.intp)
    least = np.partition(row, len(row) - count)[len(row) - count]
    ids = np.flatnonzero(row >= least) if least == least else np.arange(len(row))
    order = np.argsort(-row[ids], kind="stable")[:count]
    return ids[order]


def top_list(row: Array, count: int) -> TopList:
    """The most likely (id, log-probability), most likely first."""
    ids = most_likely(row, count)
    return list(zip(ids.tolist(), row[ids].tolist()))


def packed(row: Array, count: int) -> tuple[bytes, bytes]:
    """Ids, int32, and log-probabilities, float32, of the most likely tokens; where ``count`` is
    ``WHOLE`` no ids and all log-probabilities."""
    if count == WHOLE:
        return b"", row.tobytes()
    ids = most_likely(row, count)
    return ids.astype(np.int32).tobytes(), row[ids].tobytes()
