"""Engines: the engines of a router, by name and by index: one is sampled in constant time."""

from __future__ import annotations

from collections.abc import Iterator

from sglang.srt.routing.meta_tree import Holder
from sglang.srt.routing.routed_engine import RoutedEngine
from sglang.srt.routing.work_rate import Averages


class Engines:
    """Engines that may be chosen.

    Attributes:
        listed: all of them, in no lasting order.
        waiting: number of requests without a first token, at all of them.
        turn: of round-robin.
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
        """Mean number of requests without a first token."""
        return self.waiting / len(self.listed)

    @property
    def caches(self) -> list[Holder]:
        return list(self._by_cache)

    def get(self, name: str) -> RoutedEngine | None:
        """Return the engine of that name, None where there is none."""
        index = self._index.get(name)
        return None if index is None else self.listed[index]

    def with_cache(self, cache: Holder) -> RoutedEngine:
        """Return the engine that a cache is of."""
        return self._by_cache[cache]

    def add(self, engine: RoutedEngine) -> None:
        """Take an engine in, whose name is new."""
        self._index[engine.name] = len(self.listed)
        self.listed.append(engine)
        self._by_cache[engine.cache] = engine

    def remove(self, engine: RoutedEngine) -> None:
        """Take an engine out. Its requests are counted no more."""
        index, last = self._index.pop(engine.name), self.listed.pop()
        if last is not engine:
            self.listed[index] = last
            self._index[last.name] = index
        del self._by_cache[engine.cache]
        self.waiting -= len(engine.waiting)
        for ticket in engine.waiting:
            ticket.state = None
