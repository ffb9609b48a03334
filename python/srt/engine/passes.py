"""Passes: what the executor has been given, and for which requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.srt.core.batch import Batch
from sglang.srt.core.request import Request
from sglang.srt.engine.masks import PassMasks


class Part(NamedTuple):
    """Rows ``first`` to ``last`` of a pass, which are one request's. ``tip``: they end its work, so
    that something is sampled or read at the last position."""

    request: Request
    first: int
    last: int
    tip: bool


@dataclass(slots=True)
class Pass:
    """A planned pass: what the worker gets, and what only the engine knows of it.

    Attributes:
        masks: of the batch's samples.
        adapters: numbers of its requests' adapters.
        waits: what follows it depends on what it samples, so the next pass cannot be planned before
            its result is there.
    """

    batch: Batch
    masks: PassMasks
    parts: dict[int, Part] = field(default_factory=dict)  # by request id
    adapters: set[int] = field(default_factory=set)
    waits: bool = False
