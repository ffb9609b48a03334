"""PlannedPass: a batch, and what only the engine knows of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.srt.core.batch import Batch
from sglang.srt.core.request import Request
from sglang.srt.engine.masks import PassMasks


class PassPart(NamedTuple):
    """Rows ``first`` to ``last`` of a pass, which are one request's.

    ``complete``: they end the work of its context, so that the last position is sampled or read.
    """

    request: Request
    first: int
    last: int
    complete: bool


@dataclass(slots=True)
class PlannedPass:
    """A pass: the worker's batch, and what only the engine knows of it.

    Attributes:
        masks: of the batch's samples.
        parts: by request id.
        adapters: numbers of its requests' adapters.
        loaded: requests that it copies pages to, or that wait for other requests' copies; by id,
            whether they wait for more.
        waits: whether the next pass depends on what this one samples, so that it cannot be planned
            before the results. Never in a pipeline.
    """

    batch: Batch
    masks: PassMasks
    parts: dict[int, PassPart] = field(default_factory=dict)
    adapters: set[int] = field(default_factory=set)
    loaded: dict[int, bool] = field(default_factory=dict)
    waits: bool = False

    @property
    def needed(self) -> bool:
        """Whether there is anything to compute or to copy."""
        return bool(self.parts) or self.batch.moves is not None
