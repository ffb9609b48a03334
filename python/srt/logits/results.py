"""Results: the runner's operations on hidden states, logits and tokens, for arrays and tensors.

``HostResults`` works on NumPy arrays, from passes by native kernels; ``TorchResults`` on torch
tensors on any device. Both return the same lists, numbers and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import Sample, TopList
from sglang.srt.logits.drawing import Drawing
from sglang.srt.numeric.host_arrays import Array


class Fetching(Protocol):
    """Values that are being copied to the host. ``wait`` returns them."""

    def wait(self) -> list[Any]: ...


@dataclass(frozen=True)
class Wanted:
    """Log-probabilities to read. Each list has an entry per row of logits.

    Attributes:
        tops: number of most likely tokens to report.
        probes: ids to report.
        packed: as ``core.batch.Row.packed``; empty if no row requests it.
    """

    tops: Sequence[int]
    probes: Sequence[Sequence[int]]
    packed: Sequence[int] = field(default_factory=tuple)


class Readings(NamedTuple):
    """Log-probabilities by row: of the given id, the most likely tokens, the probes, and packed."""

    chosen: list[float]
    tops: list[TopList]
    probes: list[list[float]]
    packed: list[tuple[bytes, bytes]]


class Pooled(NamedTuple):
    """``values``: float64 [N, width]. ``finite``: bool [N], True for rows of finite values."""

    values: Array
    finite: Array


class Results(Protocol):
    """``states``: hidden states [N, width]; ``logits``: [n, vocab]; ``tokens``: int32 [n]."""

    def pick(self, states: Any, at: Int32Array) -> Any:
        """Return the rows ``at`` (ascending, distinct) of states."""
        ...

    def widened(self, logits: Any) -> Any:
        """Return the logits in float32."""
        ...

    def rows(self, x: Any, rows: Sequence[int]) -> Any:
        """Return the elements ``rows`` of logits or tokens."""
        ...

    def no_tokens(self, count: int) -> Any:
        """Return ``count`` tokens that are 0."""
        ...

    def put(self, tokens: Any, places: Sequence[int], values: Any) -> None:
        """Set ``tokens`` at the indices ``places`` to ``values``, in place."""
        ...

    def fetch(self, drawing: Drawing) -> Fetching:
        """Start to copy ``drawing.fetched`` to the host."""
        ...

    def narrowed(self, logits: Any, samples: Sequence[Sample | None]) -> Any:
        """Return the logits with -inf at ids that a mask denies, for samples that request
        log-probabilities among the allowed ids only (``masked``). ``logits`` may change."""
        ...

    def read(self, logits: Any, ids: Any, wanted: Wanted) -> Readings:
        """Read log-probabilities. ``ids``: one token id per row, as tokens or a list."""
        ...

    def pooled(
        self,
        states: Any,
        spans: Sequence[tuple[int, int, bool]],
        score: Callable[[Any], Any] | None,
    ) -> Pooled:
        """Pool rows of states. A span is (first, end, every): ``every`` returns each row of it,
        else the rows' float64 sum. ``score``: converts states to scores of labels."""
        ...
