"""Results: what a runner does with hidden states, logits and tokens, whose kind it does not know.

``HostResults`` has NumPy's arrays, of passes by native kernels; ``TorchResults`` torch's tensors on
any device. What comes back as lists, numbers and bytes is the same.
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
    """Values on their way to the host."""

    def wait(self) -> list[Any]: ...


@dataclass(frozen=True)
class Wanted:
    """Log-probabilities to read, a list entry for each row of logits.

    Attributes:
        tops: how many most likely tokens.
        probes: ids whose log-probabilities.
        packed: as ``core.batch.Row.packed``; none where nothing is.
    """

    tops: Sequence[int]
    probes: Sequence[Sequence[int]]
    packed: Sequence[int] = field(default_factory=tuple)


class Readings(NamedTuple):
    """Log-probabilities of one id a row, of the most likely tokens, of the probes, and as bytes."""

    chosen: list[float]
    tops: list[TopList]
    probes: list[list[float]]
    packed: list[tuple[bytes, bytes]]


class Pooled(NamedTuple):
    """Float64 [N, width], and bool [N]: whether all of a row is finite."""

    values: Array
    finite: Array


class Results(Protocol):
    """``states``: hidden states [N, width]; ``logits``: [n, vocab]; ``tokens``: int32 [n]."""

    def pick(self, states: Any, at: Int32Array) -> Any:
        """Rows ``at`` (ascending, distinct) of states."""
        ...

    def widened(self, logits: Any) -> Any:
        """The logits in float32."""
        ...

    def rows(self, x: Any, rows: Sequence[int]) -> Any:
        """Some rows of logits, or some tokens."""
        ...

    def no_tokens(self, count: int) -> Any:
        """Tokens that are zeros."""
        ...

    def put(self, tokens: Any, places: Sequence[int], values: Any) -> None:
        """Overwrite ``tokens`` at ``places``."""
        ...

    def fetch(self, drawing: Drawing) -> Fetching:
        """Begin to bring to the host what ``outcome`` of sampled tokens needs."""
        ...

    def narrowed(self, logits: Any, samples: Sequence[Sample | None]) -> Any:
        """The logits, which may change, with -inf where a mask denies an id and the sample asks
        for log-probabilities among those that it allows."""
        ...

    def read(self, logits: Any, ids: Any, wanted: Wanted) -> Readings:
        """Log-probabilities. ``ids``: tokens, or a list of them, one a row."""
        ...

    def pooled(
        self,
        states: Any,
        spans: Sequence[tuple[int, int, bool]],
        score: Callable[[Any], Any] | None,
    ) -> Pooled:
        """Rows of states, first and end of each span, one by one (True) or summed in float64.
        ``score``: makes scores of labels of states."""
        ...
