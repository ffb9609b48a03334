"""Match: what the cache holds of a context."""

from __future__ import annotations

from typing import NamedTuple


class Match(NamedTuple):
    """Cached prefix of a context.

    Attributes:
        tokens: those on the device.
        pins: pages that a lock would pin.
        path: numbers of the nodes.
        host: tokens after them that host memory has.
    """

    tokens: int
    pins: int
    path: tuple[int, ...]
    host: int = 0
