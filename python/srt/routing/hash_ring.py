"""HashRing: the engine that all routers of a fleet choose for a block that none of them has sent.

This is consistent hashing: when an engine comes or goes, only its own share of the blocks gets
another engine.
"""

from __future__ import annotations

import zlib
from bisect import bisect

from sglang.srt.routing.routed_engine import RoutedEngine

POINTS = 32  # points of each engine; its share of the blocks differs from the mean by some 18 %
_TURN, _MASK = 0x9E3779B1, 0xFFFFFFFF  # the odd factor mixes the bits of a CRC


class HashRing:
    """Engines on a circle of 2**32 points, by their names."""

    __slots__ = ("_engines", "_points")

    def __init__(self) -> None:
        self._points: list[int] = []
        self._engines: list[RoutedEngine] = []

    def add(self, engine: RoutedEngine) -> None:
        """Add the points of an engine."""
        for point in _points_of(engine.name):
            index = bisect(self._points, point)
            self._points.insert(index, point)
            self._engines.insert(index, engine)

    def remove(self, engine: RoutedEngine) -> None:
        """Remove the points of an engine."""
        kept = [at for at, each in enumerate(self._engines) if each is not engine]
        self._points = [self._points[at] for at in kept]
        self._engines = [self._engines[at] for at in kept]

    def at(self, block: int) -> RoutedEngine:
        """Return the engine of a block, by the hash of its tokens. The ring must not be empty."""
        index = bisect(self._points, block * _TURN & _MASK)
        return self._engines[index % len(self._engines)]


def _points_of(name: str) -> list[int]:
    return [zlib.crc32(f"{name}/{number}".encode()) * _TURN & _MASK for number in range(POINTS)]
