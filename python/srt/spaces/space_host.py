"""SpaceHost: calls that spaces make to their engine. SpaceFacts: facts about model and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sglang.srt.core.clock import Clock
from sglang.srt.core.ints import Ints
from sglang.srt.core.messages import Advance, Event, Failed, Fill
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.request import Request
from sglang.srt.memory.store import Store


class SpaceFacts(Protocol):
    """Facts of the model and the memory (``engine.info.EngineInfo``)."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    @property
    def windowed(self) -> bool: ...
    @property
    def max_loras_per_batch(self) -> int: ...
    def verify_purpose(self) -> None: ...


class Stamping(Protocol):
    """Source of sort keys of age (``engine.waiting_queue``)."""

    def stamp(self, moment: float) -> int: ...


class Retracting(Protocol):
    """Part of the planner that spaces use (``engine.planner.Planner``)."""

    @property
    def store(self) -> Store: ...
    @property
    def queue(self) -> Stamping: ...
    @property
    def running(self) -> dict[int, Request]: ...
    @property
    def stages(self) -> int: ...
    def retract(self, requests: Sequence[Request]) -> None: ...


class SpaceHost:
    """The engine, as spaces use it.

    Args:
        adapter: returns the number of a loaded adapter by name; below 0: not loaded; 0 for "".
        accept: accepts a request of the engine's own; raises ValueError or appends an event if the
            request is refused.
    """

    def __init__(
        self,
        planner: Retracting,
        clock: Clock,
        adapter: Callable[[str], int],
        accept: Callable[[Advance, list[Event]], None],
    ) -> None:
        self._planner, self._clock, self._accept = planner, clock, accept
        self.adapter = adapter

    def stamp(self) -> int:
        """Return a sort key of age for a space opened now (``core.request.arrival_key``)."""
        return self._planner.queue.stamp(self._clock.now())

    @property
    def store(self) -> Store:
        return self._planner.store

    @property
    def pipelined(self) -> bool:
        """Whether rows cannot have placeholders (``Row.follows``)."""
        return self._planner.stages > 1

    def retract_after(self, arrival: int, pages: int) -> None:
        """Retract running requests that arrived after ``arrival``, the latest first, until
        ``pages`` pages are free or evictable, or no such request is left."""
        younger = [r for r in self._planner.running.values() if r.scheduling.arrival > arrival]
        for request in sorted(younger, key=lambda r: -r.scheduling.arrival):
            if self.store.available >= pages:
                return
            self._planner.retract([request])

    def fill(self, number: int, tokens: Ints, namespace: Namespace, priority: int) -> None:
        """Begin a request that computes the KV of tokens into the prefix cache. Its id ``number``
        must be below 0. Raises ValueError if the engine refuses it."""
        self.store.open(number, tokens, namespace)
        events: list[Event] = []
        self._accept(Advance(number, number, Fill(), priority, close=True), events)
        for event in events:
            raise ValueError(event.message if isinstance(event, Failed) else "it was refused")
