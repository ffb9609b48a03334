"""Engines: the engines of a router, by name and by index, so that sampling takes constant time."""

from __future__ import annotations

from collections.abc import Iterator

from sglang.srt.routing.meta_tree import Holder
from sglang.srt.routing.routed_engine import RoutedEngine
from sglang.srt.routing.work_rate import Averages


class Engines:
    """Engines that may be chosen.

    Attributes:
        listed: all engines, in an order that may change.
        averages: running means over the requests of all engines.
        waiting: number of requests without a first token, on all engines.
        turn: next index of the policy ``round-robin``.
    """

    __slots__ = ("_by_cache", "_index", "averages", "listed", "turn", "waiting")

    def __init__(self) -> None:
        self.listed: list[RoutedEngine] = []
        self.averages = Averages()
        self.waiting = self.turn = 0
        self._index: dict[str, int] = {}
        self._by_cache: dict[Holder, RoutedEngine] = {}

    def __len__(self) -> int:
        return len(self.listed)

    def __iter__(self) -> Iterator[RoutedEngine]:
        return iter(self.listed)

    @property
    def queue(self) -> float:
        """Mean number of requests without a first token on an engine."""
        return self.waiting / len(self.listed)

    @property
    def caches(self) -> list[Holder]:
        return list(self._by_cache)

    def get(self, name: str) -> RoutedEngine | None:
        """Return the engine of this name, or None."""
        index = self._index.get(name)
        return None if index is None else self.listed[index]

    def with_cache(self, cache: Holder) -> RoutedEngine:
        """Return the engine that has this cache."""
        return self._by_cache[cache]

    def add(self, engine: RoutedEngine) -> None:
        """Add an engine. Its name must be new."""
        self._index[engine.name] = len(self.listed)
        self.listed.append(engine)
        self._by_cache[engine.cache] = engine

    def remove(self, engine: RoutedEngine) -> None:
        """Remove an engine. Its requests are not counted any more."""
        index, last = self._index.pop(engine.name), self.listed.pop()
        if last is not engine:
            self.listed[index] = last
            self._index[last.name] = index
        del self._by_cache[engine.cache]
        self.waiting -= len(engine.waiting)
        for ticket in engine.waiting:
            ticket.state = None
