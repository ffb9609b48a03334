"""HashRing: the engine that all routers of a fleet would choose for a block that none has sent yet.

Consistent hashing: an engine that comes or goes changes the answer for its own share of the blocks.
"""

from __future__ import annotations

import zlib
from bisect import bisect

from sglang.srt.routing.routed_engine import RoutedEngine

POINTS = 32  # points of an engine: its share of the blocks differs from the mean by some 18 %
_TURN, _MASK = 0x9E3779B1, 0xFFFFFFFF  # the odd factor mixes the bits of a CRC


class HashRing:
    """Engines on a circle of 2**32 points, by their names."""

    __slots__ = ("_engines", "_points")

    def __init__(self) -> None:
        self._points: list[int] = []
        self._engines: list[RoutedEngine] = []

    def add(self, engine: RoutedEngine) -> None:
        """Put an engine on its points."""
        for point in _points_of(engine.name):
            index = bisect(self._points, point)
            self._points.insert(index, point)
            self._engines.insert(index, engine)

    def remove(self, engine: RoutedEngine) -> None:
        """Take an engine off the circle."""
        kept = [at for at, each in enumerate(self._engines) if each is not engine]
        self._points = [self._points[at] for at in kept]
        self._engines = [self._engines[at] for at in kept]

    def at(self, block: int) -> RoutedEngine:
        """The engine of a block, by the hash of its tokens. There must be an engine."""
        index = bisect(self._points, block * _TURN & _MASK)
        return self._engines[index % len(self._engines)]


def _points_of(name: str) -> list[int]:
    return [zlib.crc32(f"{name}/{number}".encode()) * _TURN & _MASK for number in range(POINTS)]
