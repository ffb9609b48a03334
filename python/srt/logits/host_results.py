"""HostResults: hidden states, logits and tokens as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
from sgl_kernel import rows
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import WHOLE, Sample, TopList
from sglang.srt.logits.drawing import Drawing, mask_bytes, sized
from sglang.srt.logits.host_sampler import denied
from sglang.srt.logits.results import Pooled, Readings, Wanted
from sglang.srt.numeric.host_arrays import Array


class HostValues:
    """Implements ``Fetching`` for values that are already on the host."""

    def __init__(self, values: list[Array]) -> None:
        self._values = values

    def wait(self) -> list[Array]:
        return self._values


class HostResults:
    """Implements ``logits.results.Results``. ``threads``: threads that read log-probabilities."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

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
        sums = LogSums(logits, self.threads if len(logits) > 1 else 1)
        chosen = logits[np.arange(len(logits)), np.asarray(ids, dtype=np.intp)]
        return Readings(
            sums.logprobs(chosen).tolist(),
            [sums.top_list(i, count) for i, count in enumerate(wanted.tops)],
            sums.probe_lists(wanted.probes),
            [sums.packed(i, count) for i, count in enumerate(wanted.packed)]
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


class LogSums:
    """Computes log-probabilities of requested ids from rows of logits, float32 [n, vocab]."""

    def __init__(self, logits: Array, threads: int = 1) -> None:
        self._logits = logits
        self._largest, self._sums = rows.log_sums(logits, threads)

    def logprobs(self, logits: Array, row: int | Array | None = None) -> Array:
        """Return the float32 log-probabilities of ``logits``. ``row``: index of their row, or of
        each logit's row; None: one logit per row, in order."""
        at = slice(None) if row is None else row
        with np.errstate(invalid="ignore"):  # logits that are not finite give NaN
            found: Array = (logits - self._largest[at] - self._sums[at]).astype(np.float32)
        return found

    def probe_lists(self, probes: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return for each row i the log-probabilities of the ids ``probes[i]``."""
        sizes = [len(ids) for ids in probes]
        at = np.repeat(np.arange(len(probes)), sizes)
        ids = np.fromiter((token for row in probes for token in row), np.intp, len(at))
        values = iter(self.logprobs(self._logits[at, ids], at).tolist())
        return [list(islice(values, size)) for size in sizes]

    def top_list(self, row: int, count: int) -> TopList:
        """Return the ``count`` most likely (id, log-probability) of a row, most likely first."""
        if count < 1:
            return []
        logits = self._logits[row]
        ids = most_likely(logits, count)
        return list(zip(ids.tolist(), self.logprobs(logits[ids], row).tolist()))

    def packed(self, row: int, count: int) -> tuple[bytes, bytes]:
        """Return ids, int32, and log-probabilities, float32, of a row's ``count`` most likely
        tokens as bytes. If ``count`` is ``WHOLE``, return no ids and all log-probabilities."""
        logits = self._logits[row]
        if count == WHOLE:
            return b"", self.logprobs(logits, row).tobytes()
        ids = most_likely(logits, count)
        return ids.astype(np.int32).tobytes(), self.logprobs(logits[ids], row).tobytes()


def most_likely(row: Array, count: int) -> Array:
    """Return the ids of a row's ``count`` largest logits, largest first; ties: lowest id first."""
    count = min(count, len(row))
    if count < 1:
        return np.zeros(0, np.intp)
    least = np.partition(row, len(row) - count)[len(row) - count]
    ids = np.flatnonzero(row >= least) if least == least else np.arange(len(row))
    order = np.argsort(-row[ids], kind="stable")[:count]
    return ids[order]
