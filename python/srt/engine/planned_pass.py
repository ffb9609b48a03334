"""PlannedPass: the worker's batch, and the engine's own notes about the pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.srt.core.batch import Batch
from sglang.srt.core.request import Request
from sglang.srt.engine.masks import PassMasks


class PassPart(NamedTuple):
    """Rows ``first`` to ``last`` of a pass, both included, which belong to one request.

    ``complete``: after them all tokens of its context have KV, and the last position has outputs.
    """

    request: Request
    first: int
    last: int
    complete: bool


@dataclass(slots=True)
class PlannedPass:
    """A pass: the worker's batch, and the engine's own notes about it.

    Attributes:
        masks: masks of the batch's samples.
        parts: rows of each request, by request id.
        adapters: numbers of the requests' adapters.
        loaded: by request id, for requests that the pass copies KV to or that wait for copies:
            whether the request computes nothing until later passes have copied more.
        waits: whether the next pass cannot be planned before this one is collected, since it
            depends on the samples. Never in a pipeline.
    """

    batch: Batch
    masks: PassMasks
    parts: dict[int, PassPart] = field(default_factory=dict)
    adapters: set[int] = field(default_factory=set)
    loaded: dict[int, bool] = field(default_factory=dict)
    waits: bool = False

    @property
    def needed(self) -> bool:
        """Whether the pass computes or copies anything."""
        batch = self.batch
        return bool(batch.rows) or batch.moves is not None or batch.copies is not None
