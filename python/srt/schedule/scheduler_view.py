"""View: the input of the scheduler. PassDecision: its output, in counts of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sglang.srt.core.call_hints import CallHint
from sglang.srt.schedule.capacity import Capacity
from sglang.srt.schedule.prefill_budget import PrefillBudget


class Matched(Protocol):
    """Cached prefix of a waiting request (``memory.match.Match``)."""

    @property
    def tokens(self) -> int: ...
    @property
    def pins(self) -> int: ...
    @property
    def path(self) -> tuple[int, ...]: ...
    @property
    def host(self) -> int: ...


class Item(NamedTuple):
    """One request, as the scheduler sees it.

    Attributes:
        arrival: unique sort key of age; lower is older.
        work: tokens to compute; for a waiting request all tokens, cached or not (``View.match``).
        growth: most tokens that the request may still generate.
        room: tokens that fit into the rest of the pages that it holds.
        fixed: the planned pass has a row or copies of it already: no further row, no retraction.
        hint: facts about the application that the request is a call of.
        level: level of its program's attained service (order ``attained``).
    """

    id: int
    arrival: int
    work: int
    growth: int
    room: int = 0
    priority: int = 0
    overtaken: int = 0
    fixed: bool = False
    hint: CallHint | None = None
    level: int = 0


class View(NamedTuple):
    """State of the engine before a plan.

    Attributes:
        running: running requests, oldest first.
        waiting: first requests of the queue, oldest or highest priority first.
        available: number of pages that are free or evictable.
        budget: work that the pass may still spend on prompts.
        slots: number of requests that may still be admitted.
        reserve: share of the running requests' growth to keep pages for, in [0, 1].
        match: returns the cached prefix of a waiting request, by id.
        exclusive: returns the pages that retracting a running request would free, by id.
        start: returns the position of a running request's next token, by id.
        capacity: capacity for further requests; None if no request has a hint.
    """

    step: int
    running: list[Item]
    waiting: list[Item]
    available: int
    page_size: int
    budget: PrefillBudget
    slots: int
    reserve: float
    match: Callable[[int], Matched]
    exclusive: Callable[[int], int]
    start: Callable[[int], int]
    capacity: Capacity | None = None


@dataclass(frozen=True, slots=True)
class PassDecision:
    """Request ids to retract first, then rows: (request id, number of tokens to compute), in order.
    A row of a waiting request admits the request."""

    retract: list[int]
    rows: list[tuple[int, int]]
