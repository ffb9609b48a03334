"""SpaceWork: work that a space has requested, with the slots that it uses.

Slots and pages here are numbers of the pool: handles were looked up when the verb was applied.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from sglang.srt.core.batch import LOOSE, WHOLE, Row, Sample
from sglang.srt.core.ints import Ints, from_bytes, ints
from sglang.srt.core.space_messages import ExportPages, ForwardTokens
from sglang.srt.spaces.mask_runs import MaskRun
from sglang.srt.spaces.row_targets import RowTargets

Array: TypeAlias = np.ndarray[Any, Any]
NONE: Array = np.zeros(0, dtype=np.int32)
NOT_PLANNED = -1


def as_ints(values: Array) -> Ints:
    return from_bytes(values.astype(np.int32, copy=False).tobytes())


@dataclass(slots=True, eq=False)
class CopyWork:
    """Copy of single tokens' KV, from slot ``reads[i]`` to slot ``writes[i]``."""

    number: int
    reads: Array
    writes: Array
    priority: int

    @property
    def kept(self) -> Array:
        """Slots that keep the written KV."""
        return self.writes


@dataclass(slots=True, eq=False)
class ExportWork:
    """Export that waits until all work that writes its pages is planned. ``reads``: its slots."""

    number: int
    verb: ExportPages
    pages: Array
    reads: Array
    priority: int
    writes: Array = field(default_factory=lambda: NONE)


@dataclass(slots=True, eq=False)
class ForwardState:
    """Progress of a forward.

    Attributes:
        begun: number of tokens that planned passes have rows for.
        at: id of the pass with the last row, and index of that row; -1 before it is planned.
        token: the sampled token; -1 before.
        scores: log-probabilities of the targets whose rows have been computed.
        failed: error that ended the forward; "": none.
    """

    begun: int = 0
    at: tuple[int, int] = (NOT_PLANNED, NOT_PLANNED)
    token: int = -1
    scores: array[float] = field(default_factory=lambda: array("f"))
    failed: str = ""


@dataclass(slots=True, eq=False)
class ForwardWork:
    """A forward.

    Attributes:
        number: running number over the work of all spaces.
        slots: visible slots, then a slot for each token.
        seen: number of visible slots.
        runs: the forward's rows (``mask_runs``).
        scratch: pages for KV that is not kept; freed when the last row is planned.
        followed: the forward whose sampled token is the first token; None: the token is known.
    """

    number: int
    verb: ForwardTokens
    slots: Array
    seen: int
    runs: Sequence[MaskRun]
    priority: int
    scratch: Array
    followed: ForwardWork | None
    targets: RowTargets | None = None
    state: ForwardState = field(default_factory=ForwardState)

    @property
    def reads(self) -> Array:
        return self.slots[: self.seen]

    @property
    def writes(self) -> Array:
        return self.slots[self.seen :]

    @property
    def count(self) -> int:
        return len(self.slots) - self.seen

    @property
    def left(self) -> int:
        """Number of tokens that no planned pass has a row for."""
        return len(self.slots) - self.seen - self.state.begun

    @property
    def hides(self) -> bool:
        """Whether a mask hides any visible slot or earlier token."""
        return bool(self.verb.mask) and (len(self.runs) > 1 or len(self.runs[0].seen) != self.seen)

    @property
    def kept(self) -> Array:
        """Slots that keep the written KV."""
        return NONE if len(self.scratch) else self.writes


Work: TypeAlias = CopyWork | ExportWork | ForwardWork


def next_rows(work: ForwardWork, most: int, adapter: int, page_size: int) -> list[Row]:
    """Return the rows of a forward's next tokens, at most ``most``, and count them as begun. The
    last token's row requests the forward's outputs."""
    start = work.state.begun
    end = min(start + most, work.count)
    rows = []
    for run in work.runs:
        first, last = max(run.first, start), min(run.last, end)
        if first < last:
            row = _row(work, run, first, last, adapter, page_size)
            if work.targets is not None:
                row.score, row.probe = work.targets.of_row(first, last)
            rows.append(row)
    work.state.begun = end
    if end == work.count and work.targets is None:
        _request_outputs(rows[-1], work.verb)
    return rows


def _row(
    work: ForwardWork, run: MaskRun, first: int, last: int, adapter: int, page_size: int
) -> Row:
    tokens = from_bytes(work.verb.tokens[4 * first : 4 * last])
    slots, end = work.slots, work.seen + last
    if work.verb.mask or work.targets is not None:
        slots = np.concatenate([slots[run.seen], slots[work.seen + run.first : end]])
    else:
        slots = slots[:end]
    pages = slots if page_size == 1 else slots[::page_size] // page_size
    row = Row(LOOSE, len(slots) - (last - first), tokens, as_ints(pages))
    row.adapter = adapter
    if work.verb.positions:
        row.positions = from_bytes(work.verb.positions[4 * first : 4 * last])
    elif row.start != work.seen + first:
        row.positions = ints(range(work.seen + first, end))
    return row


def _request_outputs(row: Row, verb: ForwardTokens) -> None:
    row.probe = verb.probe
    row.packed = verb.top if verb.top > 0 or verb.top == WHOLE else 0
    if verb.sample is not None:
        sample = Sample(verb.sample, verb.uniform, top=-1 if verb.top == -1 else 0)
        if verb.history:
            sample.history = from_bytes(verb.history)
        if verb.allowed:
            sample.mask = verb.allowed
        row.sample = sample
