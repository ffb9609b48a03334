"""View: all that the scheduler reads. PassDecision: all that it returns, in counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sglang.srt.core.call_hints import CallHint
from sglang.srt.schedule.capacity import Capacity
from sglang.srt.schedule.prefill_budget import PrefillBudget


class Matched(Protocol):
    """Prefix of a waiting request that the cache holds (``memory.store.Match``)."""

    @property
    def tokens(self) -> int: ...
    @property
    def pins(self) -> int: ...
    @property
    def path(self) -> tuple[int, ...]: ...
    @property
    def host(self) -> int: ...


class Item(NamedTuple):
    """One request.

    Attributes:
        arrival: sort key of age, which no other request has.
        work: tokens to compute; for a waiting request, all its tokens (see ``View.match``).
        growth: tokens it may generate after that.
        room: tokens that fit into the pages it holds.
        fixed: whether the planned pass has it already: it gets no row and is no victim.
        hint: facts about the application that it is a call of.
        level: of its program's attained service, under the order ``attained``.
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
    """A moment of the engine.

    Attributes:
        running: oldest first.
        waiting: the first of the queue: oldest first, or highest priority first.
        available: pages that are free or evictable.
        budget: what prompts may still take of this pass.
        slots: requests that may still be admitted.
        reserve: share of the running requests' growth to keep room for, in [0, 1].
        match: cached prefix of a waiting request, by id.
        exclusive: pages that retracting a running request would free, by id.
        start: position of a running request's next token, by id.
        capacity: for further requests; None where no request has a hint.
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
    """Request ids to retract, then (id, tokens) to compute, in this order. Rows of waiting requests
    admit them."""

    retract: list[int]
    rows: list[tuple[int, int]]
